"""Kernels compile for a Hopper GPU, which needs no GPU; what they compute is tested through the operators."""

from pathlib import Path

from tests import compiling

COMPILE = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lamina.accelerate.methods.fusion import kernels
from lamina.accelerate.methods.fusion.tiles import linear_tile, pixel_tile, row_tile

common = dict(UPCAST=False, INDEX=tl.int32)
launches = []
for activation, kind, precision, cache in (
    ("relu", "fp32", "tf32x3", ""), ("relu", "fp32", "tf32", ".cg"), ("gelu", "bf16", "tf32", ""),
    ("tanh", "fp16", "tf32", ""), ("gelu_tanh", "bf16", "tf32", ".cg"),
):
    tile = linear_tile(128, 4096, 9216, 4 if kind == "fp32" else 2)
    epilogue = dict(ACTIVATION=activation, BIAS=True, KEEP=activation.startswith("gelu"))
    product = dict(BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, GROUP_M=8, PRECISION=precision)
    product |= dict(CACHE=cache)
    workers = dict(num_warps=tile.num_warps, num_stages=tile.num_stages)
    for splits in (1, tile.split_k):
        launches.append((kernels.linear_kernel, {**epilogue, **product, "SPLIT_K": splits}, kind, workers))
    finish = {**epilogue, "SPLIT_K": tile.split_k, "BLOCK_M": 16, "BLOCK_N": 128}
    launches.append((kernels.finish_kernel, finish, kind, {}))
    rows = row_tile(128, 4096)
    back = dict(ACTIVATION=activation, BLOCK_M=rows.pixels, BLOCK_N=rows.channels, CACHE=cache)
    launches.append((kernels.activation_backward_kernel, back, kind, {}))
for sizes, last, kind in (
    (dict(H=55, W=55, OH=27, OW=27, KH=3, KW=3, SH=2, SW=2, PH=0, PW=0), False, "fp32"),
    (dict(H=55, W=55, OH=27, OW=27, KH=3, KW=3, SH=2, SW=2, PH=1, PW=1), True, "bf16"),
    (dict(H=1, W=169, OH=1, OW=169, KH=1, KW=1, SH=1, SW=1, PH=0, PW=0), False, "fp16"),
):
    for kernel, pixels in ((kernels.pool_kernel, sizes["OH"] * sizes["OW"]),
                           (kernels.pool_backward_kernel, sizes["H"] * sizes["W"])):
        tile = pixel_tile(pixels, 64, last)
        constants = dict(**sizes, BLOCK_P=tile.pixels, BLOCK_C=tile.channels, LAST=last, CACHE="", BIAS=True)
        launches.append((kernel, {k: v for k, v in constants.items() if k in kernel.arg_names}, kind, {}))

pointers = ("x", "w", "bias", "y", "z", "dy", "dz", "dx", "saved")
adjacent = {"x_column", "w_column", "dy_column"}
for kernel, constants, kind, workers in launches:
    constants = {**constants, **common}
    if "x_column" in kernel.arg_names or "dy_column" in kernel.arg_names:
        constants |= {name: 1 for name in adjacent if name in kernel.arg_names}
    types = {**dict.fromkeys(pointers, f"*{kind}"), "sums": "*fp32", "partials": "*fp32", "winners": "*i8"}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    constexprs = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    even = [i for i, name in enumerate(kernel.arg_names) if signature[name].startswith("*")
            or name in ("rows", "columns", "summed", "x_row", "w_row", "dy_row")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in even}
    source = ASTSource(kernel, signature, constexprs, attributes)
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=workers)
    ptx = built.asm["ptx"]
    products = ptx.count("mma.sync") + ptx.count("wgmma.mma_async")
    assert built.metadata.shared <= 227 * 1024, (kernel.__name__, built.metadata.shared)
    assert (products > 0) == (kernel is kernels.linear_kernel), (kernel.__name__, products)
    if kernel is kernels.linear_kernel:  # operands go straight to shared memory, past L1 whatever the modifier is
        assert ptx.count("cp.async.cg") > 0 and ptx.count("cp.async.ca") == ptx.count("ld.global.cg") == 0
    if kernel is kernels.activation_backward_kernel:
        assert (ptx.count("ld.global.cg") > 0) == (constants["CACHE"] == ".cg")
"""


def test_kernels_compile_for_a_hopper_gpu(tmp_path: Path) -> None:
    done = compiling.run(COMPILE, folder=tmp_path)
    assert done.returncode == 0, done.stderr

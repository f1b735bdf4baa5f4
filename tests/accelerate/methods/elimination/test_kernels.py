"""Kernels compile for a Hopper GPU, which needs no GPU; what they compute is tested through the operators."""

from pathlib import Path

from tests import compiling

COMPILE = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lamina.accelerate.methods.elimination import kernels
from lamina.accelerate.methods.elimination.tiles import product_tile

window = dict(KH=3, KW=3, SH=1, SW=1, PH=1, PW=1, DH=1, DW=1, INSIDE=False)
pixel = dict(KH=1, KW=1, SH=1, SW=1, PH=0, PW=0, DH=1, DW=1, INSIDE=True)
launches = []
for kind, precision, taps, run, first in (
    ("fp32", "tf32x3", window, 1, 0), ("fp32", "tf32", window, 4, 0), ("bf16", "tf32", window, 8, 0),
    ("fp16", "tf32", pixel, 1, 0), ("bf16", "tf32", window, 8, 192), ("fp32", "tf32", window, 4, 48),
    ("fp32", "tf32x3", window, 4, 128),
):
    rows = 21632 if taps is window else 128
    tile = product_tile(rows, 384, 9 * first or 1152, 4 if kind == "fp32" else 2)
    product = dict(BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, GROUP_M=8, PRECISION=precision)
    even_first = first and first % tile.block_k == 0
    product |= dict(RUN=run, EVEN_K=True, FIRST=-1 if even_first else first, SPLIT_K=tile.split_k, BIAS=True)
    workers = dict(num_warps=tile.num_warps, num_stages=tile.num_stages if first else 2 * tile.num_stages - 1)
    launches.append((kernels.product_kernel, {**taps, **product}, kind, workers))
    launches.append((kernels.sum_kernel, dict(BIAS=True, SPLIT_K=3, BLOCK_M=16, BLOCK_N=128), kind, {}))
    vector = dict(TABLE=not first, EVEN_K=True, BIAS=True, BLOCK_N=8, BLOCK_K=512)
    launches.append((kernels.vector_kernel, vector, kind, {}))
    launches.append((kernels.pack_kernel, dict(BLOCK_M=16, BLOCK_C=128), kind, {}))

pointers = ("x", "w", "bias", "y")
for kernel, constants, kind, workers in launches:
    constants = {**constants, "UPCAST": False, "INDEX": tl.int32}
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    if constants.get("RUN", 1) > 1:
        constants["x_c"] = 1
    types = {**dict.fromkeys(pointers, f"*{kind}"), "partials": "*fp32", "table": "*i32", "index": "*i64"}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    constexprs = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    even = [i for i, name in enumerate(kernel.arg_names) if signature[name].startswith("*")
            or name in ("rows", "outputs", "summed", "x_n", "x_h", "x_w", "x_row", "w_row", "kept", "first")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in even}
    source = ASTSource(kernel, signature, constexprs, attributes)
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=workers)
    ptx = built.asm["ptx"]
    products = ptx.count("mma.sync") + ptx.count("wgmma.mma_async")
    assert built.metadata.shared <= 227 * 1024, (kernel.__name__, built.metadata.shared)
    if kernel is kernels.product_kernel and "cp.async" in ptx:  # a table's entries do not use up the operands' stages
        size = 4 if kind == "fp32" else 2
        rows = constants["BLOCK_M"] * ("cp.async.ca" in ptx or constants["RUN"] > 1) + constants["BLOCK_N"]
        one = rows * constants["BLOCK_K"]
        assert built.metadata.shared >= one * size * 3, (kernel.__name__, kind, built.metadata.shared)
    assert (products > 0) == (kernel is kernels.product_kernel), (kernel.__name__, products)
    if kernel is kernels.vector_kernel:
        assert "ld.global.v4" in ptx, kind
    if constants.get("RUN", 1) > 1:  # neighbours of the table are one load of 16 bytes, like those of the weights
        copies = [line for line in ptx.splitlines() if "cp.async" in line and "shared" in line]
        assert copies and all("0x10" in line for line in copies), copies[:3]
"""


def test_kernels_compile_for_a_hopper_gpu(tmp_path: Path) -> None:
    done = compiling.run(COMPILE, folder=tmp_path)
    assert done.returncode == 0, done.stderr

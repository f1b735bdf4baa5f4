"""Kernels compile for a Hopper GPU, which needs no GPU; what they compute is tested through the operator."""

from pathlib import Path

from tests import compiling

from lamina.accelerate.methods.weight_only import stream
from lamina.accelerate.methods.weight_only.config import Format
from lamina.accelerate.papers.on_chip_fission import simt
from lamina.accelerate.papers.on_chip_fission.config import OnChip, Tile
from lamina.accelerate.runtime import nvrtc as cuda

COMPILE = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lamina.accelerate.methods.weight_only import kernels, ops
from lamina.accelerate.methods.weight_only.tiles import tile

launches = []
for format, codes, kind, rows in (
    ("e4m3", "u8", "bf16", 1), ("e5m2", "u8", "bf16", 128), ("e3m4", "u8", "fp32", 16), ("e4m3", "u8", "fp32", 128),
    ("deft16", "i16", "bf16", 16), ("half", "fp16", "fp16", 16),
):
    at = tile(4096, rows, 9216, 1 if codes == "u8" else 2, 4 if kind == "fp32" else 2)
    product = dict(BIAS=True, BLOCK_M=at.block_m, BLOCK_N=at.block_n, BLOCK_K=at.block_k, PRECISION="tf32x3")
    product |= ops._dequantization(format)
    workers = dict(num_warps=at.num_warps, num_stages=at.num_stages)
    for splits in (1, at.split_k):
        launches.append((kernels.linear_kernel, {**product, "SPLIT_K": splits}, codes, kind, workers))
for rows in (16, 128):
    at = tile(4096, rows, 4608, 4, 8)
    pairs = dict(BIAS=True, SPLIT_K=at.split_k, BLOCK_M=at.block_m, BLOCK_N=at.block_n, BLOCK_K=at.block_k)
    pairs |= dict(PRECISION="tf32x3")
    launches.append((kernels.pair_kernel, pairs, "i32", "fp32", dict(num_warps=at.num_warps, num_stages=at.num_stages)))
launches.append((kernels.finish_kernel, dict(BIAS=True, SPLIT_K=4, BLOCK_M=64, BLOCK_N=16), "i8", "bf16", {}))

for kernel, constants, codes, kind, workers in launches:
    constants = {**constants, "UPCAST": False, "INDEX": tl.int32}
    if "x_column" in kernel.arg_names:
        constants["x_column"] = 1
    numbers = dict.fromkeys(("x", "y", "bias"), f"*{kind}")
    types = dict(codes=f"*{codes}", words="*i32", scale="*fp32", partials="*fp32", **numbers)
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    constexprs = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    even = [i for i, name in enumerate(kernel.arg_names) if signature[name].startswith("*")
            or name in ("outputs", "inputs", "half", "x_row")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in even}
    source = ASTSource(kernel, signature, constexprs, attributes)
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=workers)
    ptx = built.asm["ptx"]
    products = ptx.count("mma.sync") + ptx.count("wgmma.mma_async")
    assert built.metadata.shared <= 227 * 1024, (kernel.__name__, built.metadata.shared)
    assert (products > 0) == (kernel is not kernels.finish_kernel), (kernel.__name__, products)
"""

ON_CHIP: tuple[tuple[OnChip, Tile, bool], ...] = (
    ("float", 8, True),
    ("half", 6, False),
    ("deft16q", 4, True),
    ("e7m0", 8, False),
)
FEW_ROWS: tuple[tuple[Format, stream.Shape, bool], ...] = (
    ("e4m3", stream.shape_of(4096, 4096, 8), True),
    ("e5m2", stream.shape_of(4096, 25088, 1), False),
    ("e1m6", stream.shape_of(4096, 4096, 16), False),
    ("e7m0", stream.shape_of(1000, 4096, 16), True),
)
MOST_SHARED = 227 << 10
"""Bytes of shared memory that a block can have on a Hopper GPU."""


def test_kernels_compile_for_a_hopper_gpu(tmp_path: Path) -> None:
    done = compiling.run(COMPILE, folder=tmp_path)
    assert done.returncode == 0, done.stderr


@compiling.needs_nvrtc
def test_cuda_sources_compile_for_a_hopper_gpu() -> None:
    kernels = [simt.kernel("linear", format, tile, quads, "cuda") for format, tile, quads in ON_CHIP]
    kernels += [stream.kernel(format, shape, biased) for format, shape, biased in FEW_ROWS]
    assert len({shape for _, shape, _ in FEW_ROWS}) == 4 and all(s.shared <= MOST_SHARED for _, s, _ in FEW_ROWS)
    for each in kernels:
        assert isinstance(each, cuda.Kernel)
        assert cuda.compiled(each.source, "sm_90", each.options)

"""Kernels compile for a Hopper GPU (which needs none); their results are tested through the operators."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests import compiling

from lamina.accelerate.methods.activation_sparsity import functional, ops
from lamina.accelerate.methods.activation_sparsity.ellpack import kernels as ellpack_kernels
from lamina.accelerate.methods.activation_sparsity.row_union import kernels as row_union_kernels
from lamina.spec import Cost

COMPILE = """
import re, subprocess, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lamina.accelerate.methods.activation_sparsity.ellpack import kernels as ellpack_kernels
from lamina.accelerate.methods.activation_sparsity.row_union import kernels as row_union_kernels
from lamina.accelerate.methods.activation_sparsity.row_union.channels import kernels as channels_kernels
from lamina.accelerate.methods.activation_sparsity.tiles import (
    compacted_conv_tile, nonzero_tile, row_union_tile, to_ellpack_tile
)
from lamina.accelerate.common.geometry import Conv2dGeometry


def spilled(ptx):
    # Bytes of registers spilled to local memory.
    line = [triton.knobs.nvidia.ptxas.path, "-v", "-arch=sm_90a", "-", "-o", "/dev/null"]
    log = subprocess.run(line, input=ptx, capture_output=True, text=True, check=True).stderr
    return re.findall("([0-9]+) bytes spill stores", log)


pointwise, window = Conv2dGeometry(), Conv2dGeometry(3, 3, 1, 1, 1, 1)
convert, nonzero = to_ellpack_tile(256, 12544, 1), nonzero_tile(512, 12544)
launches = [(ellpack_kernels.scale_kernel, dict(TARGET_EXPONENT=14, BLOCK=512), "fp32", None)]
launches += [(row_union_kernels.row_lists_kernel, dict(BLOCK_K=1024), "fp32", None)]
for dtype, terms, each in (("fp32", (2, 2), pointwise), ("fp32", (1, 2), pointwise), ("fp32", (1, 1), window),
                           ("bf16", (0, 0), window)):
    steps = {**each.constexprs(), "UNPADDED": each == pointwise, "IS_MATRIX": each == pointwise}
    numbers, powers = dict(zip(("X_TERMS", "W_TERMS"), terms)), dict(BLOCK_PARTIALS=128, W_PARTIALS=512)
    union = row_union_tile(512, 12544)
    for store in (True, False):
        meta = dict(STORE=store, BLOCK_K=convert.block_k, BLOCK_N=convert.block_n)
        launches.append((ellpack_kernels.to_ellpack_kernel, {**steps, **meta}, dtype, convert))
    meta = dict(BIAS=True, BLOCK_M=nonzero.block_m, BLOCK_N=nonzero.block_n, UNROLL=nonzero.block_k)
    launches.append((ellpack_kernels.nonzero_kernel, {**each.constexprs(), **meta}, dtype, nonzero))
    meta = {"X_TERMS": terms[0], "BLOCK_K": 32, "BLOCK_N": 128}
    launches.append((row_union_kernels.row_flags_kernel, {**steps, **meta}, dtype, None))
    meta = dict(BIAS=True, BLOCK_M=union.block_m, BLOCK_N=union.block_n, BLOCK_K=union.block_k, GROUP_SIZE_N=8)
    launches.append((row_union_kernels.row_union_kernel, {**steps, **meta, **numbers, **powers}, dtype, union))
    meta = dict(BLOCK_M=union.block_k, BLOCK_N=union.block_n, BLOCK_K=union.block_m, **powers)
    if terms != (1, 2):
        launches.append((row_union_kernels.masked_kernel, {**meta, **numbers}, dtype, union))
    compacted = compacted_conv_tile(512, 12544, terms[1])
    meta = dict(BLOCK_C=4, BLOCK_P=1024, X_TERMS=terms[0])
    launches.append((channels_kernels.active_channels_kernel, meta, dtype, None))
    meta = dict(BLOCK_CHANNELS=256, BLOCK_P=64, BLOCK_K=compacted.block_k, X_TERMS=terms[0], BLOCK_PARTIALS=128)
    launches.append((channels_kernels.compact_kernel, meta, dtype, None))
    meta = dict(BIAS=True, W_PARTIALS=512, BLOCK_M=compacted.block_m, BLOCK_N=compacted.block_n,
                BLOCK_K=compacted.block_k, NARROW_BLOCK_K=32)
    meta = {**each.constexprs(), **meta, **numbers}
    launches.append((channels_kernels.compacted_conv_kernel, meta, dtype, compacted))

for kernel, constants, dtype, tile in launches:
    constants = dict(constants)
    for name, value in (("UPCAST", False), ("INDEX", tl.int32), ("x_w", 1), ("dc_n", 1)):
        if name in kernel.arg_names:
            constants[name] = value
    narrow = "*fp16" if constants.get("W_TERMS") or constants.get("X_TERMS") else f"*{dtype}"
    types = {**dict.fromkeys(("x", "bias", "y", "dc", "db"), f"*{dtype}")}
    types |= dict.fromkeys(("hi", "lo", "at", "at_lo"), narrow)
    if kernel is ellpack_kernels.nonzero_kernel:
        types["at"] = f"*{dtype}"
    types |= dict.fromkeys(("scales", "partial_amax", "at_amax", "dc_amax"), "*fp32")
    types |= dict.fromkeys(("flags", "active"), "*i8")
    types |= dict.fromkeys(("words", "counts", "lists", "lengths", "exponents"), "*i32")
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    constexprs = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    even = [i for i, name in enumerate(kernel.arg_names) if signature[name].startswith("*")
            or name in ("rows", "outputs", "columns", "pixels", "capacity", "x_n", "x_c", "x_h", "y_m", "dc_m", "x_k")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in even}
    source = ASTSource(kernel, signature, constexprs, attributes)
    options = dict(num_warps=tile.num_warps, num_stages=tile.num_stages) if tile else {}
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    ptx = built.asm["ptx"]
    products = ptx.count("mma.sync") + ptx.count("wgmma.mma_async")
    assert built.metadata.shared <= 227 * 1024, (kernel.__name__, built.metadata.shared)
    on_tensor_cores = kernel in (
        row_union_kernels.row_union_kernel, row_union_kernels.masked_kernel, channels_kernels.compacted_conv_kernel
    )
    assert (products > 0) == on_tensor_cores, (kernel.__name__, products)
    if on_tensor_cores and dtype == "fp32":  # whole warp groups multiply split-fp16 terms, from shared memory
        assert "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16" in ptx and "mma.sync" not in ptx
        assert "cp.async.cg" in ptx
        assert spilled(ptx) == ["0"], (kernel.__name__, spilled(ptx))
    if kernel is ellpack_kernels.nonzero_kernel:  # the outputs of one non-zero are vectorized loads
        assert "ld.global" in ptx and ".v4" in ptx
    if "-v" in __import__("sys").argv:
        print(kernel.__name__, dtype, built.metadata.shared, products, ptx.count("ld.global"), ptx.count("cp.async"))
"""


def test_kernels_compile_for_a_hopper_gpu(tmp_path: Path) -> None:
    done = compiling.run(COMPILE, folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("weights", ["same", "fp16", "bf16"])
def test_nonfinite_weights_affect_their_own_outputs_only(weights: Any) -> None:
    """Tensor cores multiply them by zeros of other columns."""
    a, b = torch.randn(150, 400, device="cuda"), torch.randn(400, 500, device="cuda").half().float()
    b[torch.rand(b.shape, device="cuda") < 0.8] = 0.0
    a[7, 5], a[100, 300], a[149, 399] = torch.inf, torch.nan, -torch.inf
    c, affected = functional.matmul(a, b, weights=weights), (~a.isfinite()).float() @ (b != 0).float() > 0
    assert torch.equal(~c.isfinite(), affected)
    stored = a.to(ops.WEIGHT_DTYPES.get(weights, a.dtype)).double().nan_to_num(0.0, 0.0, 0.0)
    torch.testing.assert_close(c[~affected].double(), (stored @ b.double())[~affected], rtol=1e-4, atol=1e-4)


def test_costs_match_hand_counts() -> None:
    # 3 x 4 elements are read, 5 words and 4 counts of each of 2 panels written.
    assert ellpack_kernels.to_ellpack_cost(3, 4, 5, 2, panels=2) == Cost(0, 24, 20 + 32)
    # 7 outputs of 5 non-zeros; 5 words, 4 counts and 3 x 7 weights are read, 7 x 4 results written.
    assert ellpack_kernels.nonzero_cost(7, 4, 3, 5, 2, 4) == Cost(70, 20 + 16 + 42, 112)
    # 2 tiles of 2 columns list 5 rows in all: 20 operands a column-element each.
    assert row_union_kernels.row_union_cost(7, 4, 3, 5, 2, 4) == Cost(140, (21 + 10) * 4 + 20, 112)

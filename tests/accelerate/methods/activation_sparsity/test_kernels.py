"""Kernels compile for a Hopper GPU, which needs no GPU; what they compute is tested through the operators."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.accelerate.methods.activation_sparsity import functional, kernels, ops
from lamina.spec import Cost

# Run without the interpreter, which is fixed when a kernel is decorated.
COMPILE = """
import re, subprocess, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lamina.accelerate.methods.activation_sparsity import kernels
from lamina.accelerate.methods.activation_sparsity.row_union import kernels as living_kernels
from lamina.accelerate.methods.activation_sparsity.tiles import convert_tile, living_tile, nonzero_tile, union_tile
from lamina.accelerate.methods.activation_sparsity.window import Window


def spilled(ptx):
    # Bytes that registers had no room for.
    line = [triton.knobs.nvidia.ptxas.path, "-v", "-arch=sm_90a", "-", "-o", "/dev/null"]
    told = subprocess.run(line, input=ptx, capture_output=True, text=True, check=True).stderr
    return re.findall("([0-9]+) bytes spill stores", told)


pixel, window = Window(), Window(3, 3, 1, 1, 1, 1)
convert, nonzero = convert_tile(256, 12544, 1), nonzero_tile(512, 12544)
launches = [(kernels.scale_kernel, dict(LARGEST=14, BLOCK=512), "fp32", None)]
launches += [(kernels.list_kernel, dict(BK=1024), "fp32", None)]
for kind, halved, each in (("fp32", (2, 2), pixel), ("fp32", (1, 2), pixel), ("fp32", (1, 1), window),
                           ("bf16", (0, 0), window)):
    steps = {**each.switches(), "INSIDE": each == pixel, "SINGLE": each == pixel}
    numbers, powers = dict(zip("XW", halved)), dict(PARTS=128, SHARES=512)
    union = union_tile(512, 12544)
    for store in (True, False):
        meta = dict(STORE=store, BK=convert.depth, BN=convert.columns)
        launches.append((kernels.convert_kernel, {**steps, **meta}, kind, convert))
    meta = dict(BIAS=True, BM=nonzero.outputs, BN=nonzero.columns, UNROLL=nonzero.depth)
    launches.append((kernels.nonzero_kernel, {**each.switches(), **meta}, kind, nonzero))
    launches.append((kernels.flag_kernel, {**steps, "X": halved[0], "BK": 32, "BN": 128}, kind, None))
    meta = dict(BIAS=True, BM=union.outputs, BN=union.columns, BK=union.depth, GROUP=8)
    launches.append((kernels.union_kernel, {**steps, **meta, **numbers, **powers}, kind, union))
    meta = dict(BM=union.depth, BN=union.columns, BK=union.outputs, **powers)
    if halved != (1, 2):
        launches.append((kernels.masked_kernel, {**meta, **numbers}, kind, union))
    living = living_tile(512, 12544, halved[1])
    launches.append((living_kernels.live_kernel, dict(BC=4, BP=1024, X=halved[0]), kind, None))
    meta = dict(ALL=256, BP=64, BK=living.depth, X=halved[0], PARTS=128)
    launches.append((living_kernels.gather_kernel, meta, kind, None))
    meta = dict(BIAS=True, SHARES=512, BM=living.outputs, BN=living.columns, BK=living.depth, NARROW=32)
    launches.append((living_kernels.living_kernel, {**each.switches(), **meta, **numbers}, kind, living))

for kernel, constants, kind, tile in launches:
    constants = dict(constants)
    for name, value in (("UPCAST", False), ("INDEX", tl.int32), ("x_w", 1), ("dc_n", 1)):
        if name in kernel.arg_names:
            constants[name] = value
    narrow = "*fp16" if constants.get("W") or constants.get("X") else f"*{kind}"
    types = {**dict.fromkeys(("x", "bias", "y", "dc", "db"), f"*{kind}")}
    types |= dict.fromkeys(("high", "low", "at", "at_low"), narrow)
    if kernel is kernels.nonzero_kernel:
        types["at"] = f"*{kind}"
    types |= dict.fromkeys(("found", "scales", "peaks", "at_peaks", "dc_peaks"), "*fp32")
    types |= dict.fromkeys(("flags", "live"), "*i8")
    types |= dict.fromkeys(("words", "counts", "lists", "lengths", "shifts"), "*i32")
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    constexprs = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    even = [i for i, name in enumerate(kernel.arg_names) if signature[name].startswith("*")
            or name in ("rows", "outputs", "columns", "pixels", "room", "x_n", "x_c", "x_h", "y_m", "dc_m", "x_k")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in even}
    source = ASTSource(kernel, signature, constexprs, attributes)
    workers = dict(num_warps=tile.warps, num_stages=tile.stages) if tile else {}
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=workers)
    ptx = built.asm["ptx"]
    products = ptx.count("mma.sync") + ptx.count("wgmma.mma_async")
    assert built.metadata.shared <= 227 * 1024, (kernel.__name__, built.metadata.shared)
    on_tensor_cores = kernel in (kernels.union_kernel, kernels.masked_kernel, living_kernels.living_kernel)
    assert (products > 0) == on_tensor_cores, (kernel.__name__, products)
    if on_tensor_cores and kind == "fp32":  # whole warp groups multiply halves, which lie in shared memory beforehand
        assert "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16" in ptx and "mma.sync" not in ptx
        assert "cp.async.cg" in ptx
        assert spilled(ptx) == ["0"], (kernel.__name__, spilled(ptx))
    if kernel is kernels.nonzero_kernel:  # outputs of one non-zero are wide loads
        assert "ld.global" in ptx and ".v4" in ptx
    if "-v" in __import__("sys").argv:
        print(kernel.__name__, kind, built.metadata.shared, products, ptx.count("ld.global"), ptx.count("cp.async"))
"""


def test_kernels_compile_for_a_hopper_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("weights", ["same", "fp16", "bf16"])
def test_weights_that_are_not_finite_spoil_their_own_outputs_alone(weights: Any) -> None:
    """A tensor core multiplies them by zeros of other columns."""
    a, b = torch.randn(150, 400, device="cuda"), torch.randn(400, 500, device="cuda").half().float()
    b[torch.rand(b.shape, device="cuda") < 0.8] = 0.0
    a[7, 5], a[100, 300], a[149, 399] = torch.inf, torch.nan, -torch.inf
    c, spoilt = functional.matmul(a, b, weights=weights), (~a.isfinite()).float() @ (b != 0).float() > 0
    assert torch.equal(~c.isfinite(), spoilt)
    stored = a.to(ops.STORED.get(weights, a.dtype)).double().nan_to_num(0.0, 0.0, 0.0)
    torch.testing.assert_close(c[~spoilt].double(), (stored @ b.double())[~spoilt], rtol=1e-4, atol=1e-4)


def test_costs_are_as_counted_by_hand() -> None:
    # 3 x 4 numbers are read, 5 words and 4 counts of each of 2 panels written.
    assert kernels.convert_cost(3, 4, 5, 2, panels=2) == Cost(0, 24, 20 + 32)
    # 7 outputs of 5 non-zeros; 5 words, 4 counts and 3 x 7 weights are read, 7 x 4 results written.
    assert kernels.nonzero_cost(7, 4, 3, 5, 2, 4) == Cost(70, 20 + 16 + 42, 112)
    # 2 tiles of 2 columns list 5 rows in all: 20 operands a column-element each.
    assert kernels.union_cost(7, 4, 3, 5, 2, 4) == Cost(140, (21 + 10) * 4 + 20, 112)

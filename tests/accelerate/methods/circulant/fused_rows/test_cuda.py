"""The CUDA sources, on the GPU or as C++ on the CPU with one warp per block, against a product in float64."""

from itertools import product
from typing import Any

import pytest
import torch
from tests import compiling
from torch import Tensor

from lamina.accelerate.common.tiling import SHARED_MEMORY
from lamina.accelerate.methods.circulant import reference
from lamina.accelerate.methods.circulant.activations import (
    ACTIVATIONS,
    InputActivation,
    activated,
    code,
    gradient_through,
)  # fmt: skip
from lamina.accelerate.methods.circulant.fused_rows import cuda
from lamina.accelerate.methods.circulant.fused_rows.cuda import FusedRows, RowSteps, RowTile, WeightTile
from lamina.testing.cuda_on_cpu import KernelOnCpu

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
STAGED = RowTile(1, 8, 1, splits=2, staged=True, prefetch=True)
AHEAD = RowTile(1, 8, 1, item_blocks=2, prefetch=True, rows_ahead=True)
SHARED = RowTile(1, 8, 1, item_blocks=2, shared_spectra=True, rows_ahead=True)
CASES = {  # block size, p, q, rows, dtype of rows, dtype of weights, tiles
    "plain": (64, 3, 5, 37, FP16, FP32, RowTile(1, 8, 1), WeightTile(1, 1, 2)),
    "staged": (32, 9, 5, 19, BF16, BF16, STAGED, WeightTile(1, 1, 1)),
    "halves of items": (32, 3, 9, 40, FP16, FP16, AHEAD, WeightTile(1, 1, 2, item_blocks=2)),
    "one shared place": (16, 3, 5, 57, FP16, FP32, SHARED, WeightTile(1, 1, 1)),
    "one row, one block": (128, 1, 1, 1, BF16, FP32, AHEAD, WeightTile(1, 1, 1)),
    "float32": (64, 3, 5, 37, FP32, FP32, AHEAD, WeightTile(1, 1, 2, item_blocks=2)),
    "float32, staged": (32, 9, 5, 19, FP32, FP32, STAGED, WeightTile(1, 1, 1)),
    "float32, one shared place": (16, 3, 5, 57, FP32, FP32, SHARED, WeightTile(1, 2, 1, item_blocks=2)),
    "float32, one row, one block": (128, 1, 1, 1, FP32, FP32, AHEAD, WeightTile(1, 1, 1, item_blocks=2)),
}
LIMITS = {BF16: 2**-6, FP16: 2**-9, FP32: 2**-10}
"""Errors of norms: two roundings of 16-bit rows; of float32 rows the one of TF32, since results are not rounded."""
LARGE = [  # block size, p, q, rows: tiles of each kind, and rows and blocks that no tile divides
    (64, 17, 9, 1001), (64, 5, 20, 999), (64, 12, 49, 4097), (64, 61, 16, 5001), (64, 16, 64, 1021), (32, 95, 23, 4099),
    (32, 23, 95, 4099), (128, 23, 5, 1003), (128, 5, 23, 1003), (16, 33, 7, 1009), (16, 7, 100, 4444), (64, 1, 1, 1),
    (64, 3, 9, 9001),
]  # fmt: skip
NETWORKS = [  # of an MLP, of ViT-B and of GPT-2
    (64, 64, 16, 2048), (64, 16, 64, 2048), (64, 48, 12, 6304), (64, 12, 48, 6304), (64, 36, 12, 6304),
    (64, 12, 12, 6304), (64, 48, 12, 8192), (64, 12, 48, 8192), (128, 32, 8, 2048), (128, 8, 32, 2048),
    (32, 128, 32, 2048), (32, 32, 128, 2048), (32, 96, 24, 6304), (16, 48, 64, 2048), (16, 64, 192, 6304),
]  # fmt: skip


def check(
    k: int, p: int, q: int, rows: int, dtype: torch.dtype, weight_dtype: torch.dtype,
    tile: RowTile | None = None, weight_tile: WeightTile | None = None, device: str = "cuda", signed: bool = False,
) -> None:  # fmt: skip
    """Outputs and both gradients, each of whose elements must be written, within the rounding of ``dtype``.

    With random sign flips, in the dtype of weights, they are bit by bit those of rows that are flipped outside.
    """
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    x, dy, bias = random(rows, q * k).to(dtype), random(rows, p * k).to(dtype), random(p * k)
    weight = (random(p, q, k) / (q * k) ** 0.5).to(weight_dtype)
    signs = random(k).sign().to(weight_dtype) if signed else None
    exact = [x.double().requires_grad_(), weight.double().requires_grad_()]
    expected = reference.linear(reference.flip_signs(exact[0], signs), exact[1], bias.double(), p * k)
    gradients = torch.autograd.grad(expected, exact, dy.double())
    forward, backward = cuda.weight_spectra(weight, dtype)

    def step(x: Tensor, signs: Tensor | None) -> list[Tensor]:
        y, dx, dw = results = [torch.full_like(like, torch.nan) for like in (dy, x, weight)]
        cuda.run_rows(x, forward, bias, y, k, tile, signs)
        sums = torch.full_like(cuda.column_sums_like(dy), torch.nan)
        cuda.run_rows(dy, backward, None, dx, k, tile, signs, flip_outputs=True, column_sums=sums)
        db = torch.full((p * k,), torch.nan, dtype=weight_dtype, device=device)
        cuda.run_weight_gradient(dy, x, dw, weight_tile, splits=3, signs=signs, column_sums=sums, db=db)
        error = (db.double() - (exact_db := dy.double().sum(0))).norm() / exact_db.norm()
        assert error < max(2e-6, torch.finfo(weight_dtype).eps)
        return results

    ours = step(x, signs)
    for actual, wanted in zip(ours, (expected.detach(), *gradients), strict=True):
        error = (actual.double() - wanted).norm() / wanted.norm()
        assert error < LIMITS[dtype]
    if signed:
        y, dx, dw = step(reference.flip_signs(x, signs), None)
        assert all(map(torch.equal, ours, (y, reference.flip_signs(dx, signs), dw)))


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_on_the_cpu(case: str, signed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "kernel_class", KernelOnCpu)
    monkeypatch.setattr(cuda, "MULTIPROCESSORS", 2)
    monkeypatch.setattr(cuda, "MANY_SUMS", 1 if signed else 512)
    check(*CASES[case], device="cpu", signed=signed)


def check_activation(
    activation: InputActivation, k: int, p: int, q: int, rows: int, dtype: torch.dtype, tile: RowTile | None = None,
    weight_tile: WeightTile | None = None, device: str = "cuda",
) -> None:  # fmt: skip
    """Results with activations in the kernels are those of activations outside, also of what is not a number.

    ReLU bit by bit; GELU within the rounding of its own formula, of its derivative and of results.
    """
    x, bias = 2 * torch.randn(rows, q * k).to(device, dtype), torch.randn(p * k).to(device)
    dy, weight = torch.randn(rows, p * k).to(device, dtype), torch.randn(p, q, k).to(device)
    forward, backward = cuda.weight_spectra(weight, dtype)
    x[-1, -1] = 0
    exact = activation == "relu"

    def rows_of(like: Tensor, *operands: Any, **options: Any) -> Tensor:
        out = torch.full_like(like, torch.inf)
        cuda.run_rows(*operands, out, k, tile, **options)
        return out

    def weight_gradient(x: Tensor, activation: int = 0) -> Tensor:
        out = torch.full_like(weight, torch.nan)
        cuda.run_weight_gradient(dy, x, out, weight_tile, splits=3, activation=activation)
        return out

    def assert_same(ours: Tensor, theirs: Tensor, roundings: float) -> None:
        if exact:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
            return
        assert torch.equal(ours.isnan(), theirs.isnan())
        error, right = (one.double().nan_to_num(0) for one in (ours - theirs, theirs))
        assert error.norm() <= roundings * torch.finfo(FP16 if dtype == FP32 else dtype).eps * right.norm()

    assert_same(weight_gradient(x, code(activation)), weight_gradient(activated(x, activation)), 0.5)
    for first in (x[0, 0].item(), torch.nan):
        x[0, 0] = first
        for b in (bias, None):
            outside = rows_of(dy, activated(x, activation), forward, b)
            assert outside[0].isnan().any() == (first != first)
            assert_same(rows_of(dy, x, forward, b, activation=code(activation)), outside, 0.5)
        through = rows_of(x, dy, backward, None, flip_outputs=True, gate=x, activation=code(activation))
        assert_same(through, gradient_through(rows_of(x, dy, backward, None, flip_outputs=True), x, activation), 1)


def check_relu_of_outputs(
    k: int, p: int, q: int, rows: int, dtype: torch.dtype, tile: RowTile | None = None, device: str = "cuda"
) -> None:
    """Outputs with ReLU in the kernels are bit by bit those of ReLU outside, also of what is not a number."""
    x, bias = torch.randn(rows, q * k).to(device, dtype), torch.randn(p * k).to(device)
    x[0, 0] = torch.nan
    forward, _ = cuda.weight_spectra(torch.randn(p, q, k).to(device), dtype)
    for b in (bias, None):
        plain, ours = torch.full((2, rows, p * k), torch.inf).to(device, dtype)
        cuda.run_rows(x, forward, b, plain, k, tile)
        cuda.run_rows(x, forward, b, ours, k, tile, relu=True)
        assert plain[0].isnan().any()
        torch.testing.assert_close(ours, plain.relu(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("case", "activation"),
    [*product(CASES, ("relu", "gelu")), *product(("halves of items", "one row, one block", "float32"), ("gelu_tanh",))],
)
def test_activations_on_the_cpu(case: str, activation: InputActivation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "kernel_class", KernelOnCpu)
    monkeypatch.setattr(cuda, "MULTIPROCESSORS", 2)
    k, p, q, rows, dtype, _, *tiles = CASES[case]
    check_activation(activation, k, p, q, rows, dtype, *tiles, device="cpu")


@pytest.mark.parametrize("case", CASES)
def test_relu_of_outputs_on_the_cpu(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "kernel_class", KernelOnCpu)
    k, p, q, rows, dtype, _, tile, _ = CASES[case]
    check_relu_of_outputs(k, p, q, rows, dtype, tile, device="cpu")


@compiling.needs_nvrtc
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize("k", cuda.BLOCK_SIZES)
def test_sources_compile_for_a_hopper_gpu(
    k: int, dtype: torch.dtype, own_binaries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "kernel_class", compiling.ForHopper)
    for p, q, signs in ((768 // k, 3072 // k, None), (3072 // k, 768 // k, torch.ones(k))):
        x, dy, weight, bias = (torch.empty(shape) for shape in ((8192, q * k), (8192, p * k), (p, q, k), (p * k,)))
        x, dy, fused = x.to(dtype), dy.to(dtype), signs is not None
        forward, backward = cuda.weight_spectra(weight, dtype)
        activation = code("gelu") if fused else 0
        cuda.run_rows(x, forward, bias, dy, k, signs=signs, activation=activation, relu=not fused, overlapped=True)
        of_gate = {"gate": x if fused else None, "activation": activation}
        sums = cuda.column_sums_like(dy) if fused else None
        cuda.run_rows(dy, backward, None, x, k, signs=signs, flip_outputs=True, **of_gate, column_sums=sums)
        options = {"activation": activation, "overlapped": True}
        cuda.run_weight_gradient(dy, x, weight, signs=signs, **options, column_sums=sums, db=bias)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize("sizes", [LARGE[0], LARGE[5], LARGE[7], LARGE[9], (64, 12, 48, 6304)])
def test_activations_on_the_gpu(
    sizes: tuple[int, int, int, int], dtype: torch.dtype, activation: InputActivation
) -> None:
    check_activation(activation, *sizes, dtype)
    check_relu_of_outputs(*sizes, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("dtype", "weight_dtype"), [(BF16, FP32), (FP16, FP16), (FP32, FP32)])
@pytest.mark.parametrize("sizes", LARGE)
def test_on_the_gpu(
    sizes: tuple[int, int, int, int], dtype: torch.dtype, weight_dtype: torch.dtype, signed: bool
) -> None:
    check(*sizes, dtype, weight_dtype, signed=signed)


@pytest.mark.gpu
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("sizes", NETWORKS)
def test_float32_rows_of_networks_on_the_gpu(sizes: tuple[int, int, int, int], signed: bool) -> None:
    check(*sizes, FP32, FP32, signed=signed)


@pytest.mark.parametrize("block_size", cuda.BLOCK_SIZES)
def test_without_signs_kernels_have_no_code_for_them(block_size: int) -> None:
    problem, signs = FusedRows(block_size, 3, 5, BF16), torch.ones(block_size, dtype=FP16)
    tile, weight_tile = cuda.row_tile(problem, 4096), cuda.weight_tile(problem, 4096)
    assert tile is not None
    for flipped in (False, True):
        of_rows = problem.row_macros(tile, RowSteps(bias=True), signs, flipped)
        for macros in (of_rows, problem.weight_macros(weight_tile, signs, flipped)):
            assert (macros["SIGN_TYPE"], macros["FLIP_IN"], macros["FLIP_OUT"]) == (2, not flipped, flipped)
        assert cuda.sign_macros(None, flipped) == {"SIGN_TYPE": 0, "FLIP_IN": 0, "FLIP_OUT": 0}


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_tiles_fit_the_memory_and_divide_the_work(dtype: torch.dtype) -> None:
    for k, p, q, rows in product(cuda.BLOCK_SIZES, (1, 5, 12, 48, 256), (1, 3, 16, 64, 100), (1, 2112, 4096, 20000)):
        problem = FusedRows(k, q, p, dtype)
        tile = cuda.row_tile(problem, rows)
        if tile is None:
            assert q * k > 4096  # wider rows are refused
            continue
        assert problem.fits(tile)
        assert tile.chunk % 8 == 0
        assert not tile.staged or 16 % tile.num_warps == 0  # each warp copies as many rows
        if tile.shared_spectra:
            assert tile.chunk >= p
            assert tile.chunk // 8 * (problem.slots // 8) <= tile.num_warps
        weight_tile = cuda.weight_tile(problem, rows)
        assert problem.weight_bytes(weight_tile) <= SHARED_MEMORY
        assert problem.slots % weight_tile.num_warps == 0
        assert tile.num_warps * tile.blocks_per_sm >= 8
        assert weight_tile.in_tiles * -(-q // (4 * weight_tile.in_tiles)) < -(-q // 4) + weight_tile.in_tiles


@pytest.mark.parametrize(
    ("sizes", "forward", "backward"),
    [
        ((64, 48, 12, 4096), RowTile(8, 16, 2, staged=True), RowTile(16, 16, 1, staged=True, prefetch=True)),
        (
            (64, 64, 16, 6304),
            RowTile(4, 8, 3, staged=True, prefetch=True),
            RowTile(8, 16, 1, item_blocks=2, prefetch=True, rows_ahead=True),
        ),
    ],
)
def test_tiles_are_those_that_were_measured(
    sizes: tuple[int, int, int, int], forward: RowTile, backward: RowTile
) -> None:
    k, p, q, rows = sizes
    assert cuda.row_tile(FusedRows(k, q, p, BF16), rows) == forward
    assert cuda.row_tile(FusedRows(k, p, q, BF16), rows) == backward


@pytest.mark.parametrize(
    ("p", "q", "rows", "expected"),
    [
        (64, 16, 2048, WeightTile(16, 1, 4, 2)),
        (64, 16, 4096, WeightTile(8, 2, 4, 2)),
        (48, 12, 6304, WeightTile(16, 2, 3, 2)),
    ],
)
def test_weight_tiles_of_float32_rows_are_those_that_were_measured(
    p: int, q: int, rows: int, expected: WeightTile
) -> None:
    assert cuda.weight_tile(FusedRows(64, q, p, FP32), rows) == expected


@pytest.mark.parametrize(("activation", "item_blocks"), [(None, 4), ("relu", 4), ("gelu", 2), ("gelu_tanh", 2)])
def test_behind_gelu_all_warps_compute_as_much(activation: InputActivation | None, item_blocks: int) -> None:
    tile = cuda.weight_tile(FusedRows(64, 16, 64, BF16), 6304, code(activation))
    assert tile == WeightTile(8, 2, 4, item_blocks)

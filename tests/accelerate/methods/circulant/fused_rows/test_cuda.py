"""The CUDA sources, on the GPU or as C++ on the CPU with one warp per block, against a product in float64."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lamina.accelerate.methods.circulant import reference
from lamina.accelerate.methods.circulant.fused_rows import cuda
from lamina.accelerate.methods.circulant.fused_rows.cuda import RowTile, WeightTile
from lamina.testing.cuda_on_cpu import KernelOnCpu

AHEAD = RowTile(1, 1, 8, 1, staged=True, weights_ahead=2, prefetch=True, rows_ahead=True, touch=True)
ALTERNATING = WeightTile(1, 1, 1, 1, 1, asynchronous=2)
CASES = {  # block size, p, q, rows, dtype of rows, dtype of weights, tiles
    "plain": (64, 3, 5, 37, torch.float16, torch.float32, RowTile(1, 1, 8, 1), WeightTile(1, 1, 1, 2, 1)),
    "ahead": (32, 9, 5, 19, torch.bfloat16, torch.bfloat16, replace(AHEAD, row_tiles=2, splits=2), ALTERNATING),
    "halves of items": (
        (
            32,
            3,
            9,
            40,
            torch.float16,
            torch.float16,
            replace(AHEAD, item_blocks=2),
            WeightTile(1, 1, 1, 2, 1, item_blocks=2, asynchronous=1),
        )
    ),
    "one shared place, many row tiles": (
        (
            16,
            3,
            5,
            57,
            torch.float16,
            torch.float32,
            RowTile(1, 1, 8, 1, shared_spectra=True, staged=True, prefetch=True, fetched=2),
            ALTERNATING,
        )
    ),
    "one row, one block": (128, 1, 1, 1, torch.bfloat16, torch.float32, AHEAD, ALTERNATING),
}
LARGE = {
    "staged": (
        (
            64,
            17,
            9,
            1001,
            torch.bfloat16,
            torch.float32,
            RowTile(8, 1, 16, 2, staged=True, touch=True),
            WeightTile(16, 1, 2, 3, 1, item_blocks=2, asynchronous=2),
        )
    ),
    "ahead, narrowing": (
        (
            64,
            5,
            20,
            999,
            torch.float16,
            torch.float16,
            replace(AHEAD, num_warps=8, item_blocks=2),
            WeightTile(8, 1, 2, 2, 1, asynchronous=1),
        )
    ),
    "many row tiles": (
        (
            64,
            12,
            24,
            4097,
            torch.bfloat16,
            torch.bfloat16,
            RowTile(16, 1, 16, 1, fetched=3, item_blocks=4),
            WeightTile(8, 1, 2, 3, 1, ahead=True),
        )
    ),
}


def check(
    k: int, p: int, q: int, rows: int, dtype: torch.dtype, weight_dtype: torch.dtype,
    tile: RowTile, weight_tile: WeightTile, device: str,
) -> None:  # fmt: skip
    """Outputs and both gradients, each of whose elements must be written, within the rounding of ``dtype``."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    x, dy, bias = random(rows, q * k).to(dtype), random(rows, p * k).to(dtype), random(p * k)
    weight = (random(p, q, k) / (q * k) ** 0.5).to(weight_dtype)
    exact = [x.double().requires_grad_(), weight.double().requires_grad_()]
    expected = reference.linear(exact[0], exact[1], bias.double(), p * k)
    gradients = torch.autograd.grad(expected, exact, dy.double())
    y, dx, dw = (torch.full_like(like, torch.nan) for like in (dy, x, weight))
    forward, backward = cuda.weight_spectra(weight, dtype)
    cuda.run_rows(x, forward, bias, y, k, tile)
    cuda.run_rows(dy, backward, None, dx, k, tile)
    cuda.run_weight_gradient(dy, x, dw, weight_tile, splits=3)
    for actual, wanted in zip((y, dx, dw), (expected.detach(), *gradients), strict=True):
        error = (actual.double() - wanted).norm() / wanted.norm()
        assert error < 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("case", CASES)
def test_on_the_cpu(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "kernel_class", KernelOnCpu)
    monkeypatch.setattr(cuda, "MULTIPROCESSORS", 2)
    check(*CASES[case], device="cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("case", LARGE)
def test_on_the_gpu(case: str) -> None:
    check(*LARGE[case], device="cuda")

"""Correctness check: a layer's results against the same layer in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lamina.errors import CheckError

LIMITS: dict[str, float] = {"fp64": 1e-10, "fp32": 1e-3, "tf32": 4e-3, "bf16": 4e-2, "fp16": 1e-2}
"""Largest permitted relative L2 error per precision. An incorrect layer has an error of about 1. The limits allow for
cancellation in normalizations and long sums, and for the vendor library's own algorithms: its FFT convolutions are less
accurate in fp32. The fp32 limit therefore does not separate float32 from TF32 products; the error of the row does."""


NOISES = 8.0
"""How often an error may exceed the effect of rounding the inputs, of which one sample is known."""

TF32_EPS = 2.0**-10


def relative_error(results: Sequence[Tensor | None], references: Sequence[Tensor | None]) -> float:
    """``|result - reference| / |reference|`` in the L2 norm over all tensors; NaN counts as infinity."""
    square_error = square_reference = 0.0
    for result, reference in zip(results, references, strict=True):
        if result is None or reference is None:
            continue
        ours, exact = _wide(result.detach()), _wide(reference.detach())
        if not (exact.isfinite().all() and ours.isfinite().all()):
            # What is no number in float64 either, or beyond the result's range, is no error of the result.
            in_range = _wide(reference.detach().to(result.dtype))
            same = (ours == exact) | (ours.isnan() & exact.isnan()) | (~ours.isfinite() & (ours == in_range))
            ours, exact = ours.masked_fill(same, 0), exact.masked_fill(same, 0)
        square_error += (ours - exact).abs().square().sum().item()
        square_reference += exact.abs().square().sum().item()
    if square_error == 0:
        return 0.0
    error = (square_error / square_reference) ** 0.5 if square_reference else float("inf")
    return error if error == error else float("inf")


def widened(tensor: Tensor) -> Tensor:
    """Real values in float64 and complex ones in complex128; integers as they are."""
    return _wide(tensor) if tensor.is_floating_point() or tensor.is_complex() else tensor


def _wide(tensor: Tensor) -> Tensor:
    tensor = tensor.to_dense() if tensor.is_sparse else tensor
    return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double()


def judge(error: float, precision: str, noise: float = 0.0) -> None:
    """Reject a result whose error exceeds the limit of its precision.

    Args:
        error: relative to the float64 result.
        precision: of the result.
        noise: how far the result moves, as a fraction of itself, when its inputs change by a rounding. Where the
            terms of a sum cancel, that is more than the limit.

    Raises:
        CheckError: with the error and the limit.
    """
    if not error <= max(LIMITS[precision], NOISES * noise):
        raise CheckError(
            f"relative L2 error {error:.2e} against float64 exceeds {LIMITS[precision]:.0e} for {precision}: not timed"
        )


def perturbed(tensor: Tensor, precision: str) -> Tensor:
    """A tensor with relative changes as large as a rounding to the precision, of fixed random signs."""
    signs = torch.randint(2, tensor.shape, generator=torch.Generator().manual_seed(0)).to(tensor) * 2 - 1
    size = TF32_EPS if precision == "tf32" else torch.finfo(tensor.dtype).eps
    return tensor * (1 + size * signs)

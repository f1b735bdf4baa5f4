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


def relative_error(results: Sequence[Tensor | None], references: Sequence[Tensor | None]) -> float:
    """``|result - reference| / |reference|`` in the L2 norm over all tensors; NaN counts as infinity."""
    square_error = square_reference = 0.0
    for result, reference in zip(results, references, strict=True):
        if result is None or reference is None:
            continue
        difference = result.detach().double() - reference.double()
        square_error += difference.square().sum().item()
        square_reference += reference.double().square().sum().item()
    if square_error == 0:
        return 0.0
    error = (square_error / square_reference) ** 0.5 if square_reference else float("inf")
    return error if error == error else float("inf")


def judge(error: float, precision: str) -> None:
    """Reject a result whose error exceeds the limit of its precision.

    Raises:
        CheckError: with the error and the limit.
    """
    if not error <= LIMITS[precision]:
        raise CheckError(
            f"relative L2 error {error:.2e} against float64 exceeds {LIMITS[precision]:.0e} for {precision}: not timed"
        )


def is_random(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Whether two calls on the same input differ, as in dropout: then there is no reference to compare with."""
    return any(not torch.equal(a, b) for a, b in zip(first, second, strict=True))

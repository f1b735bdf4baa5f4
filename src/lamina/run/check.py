"""Is it right? A layer's results beside the same layer in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lamina.errors import CheckError

LIMITS: dict[str, float] = {"fp64": 1e-10, "fp32": 1e-3, "tf32": 4e-3, "bf16": 4e-2, "fp16": 1e-2}
"""Largest relative L2 error a precision may show. A wrong layer is off by about one; the room below that is for
cancellation in normalisations and long sums, and for what the vendor library does inside a precision: its FFT
convolutions lose digits in fp32. So the fp32 bound cannot tell float32 products from TF32 ones; a row's error can."""


def relative_error(results: Sequence[Tensor | None], references: Sequence[Tensor | None]) -> float:
    """``|result - reference| / |reference|`` in the L2 norm, over all tensors together; NaN counts as infinite."""
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
    """Refuse a result that is further from float64 than its precision can explain.

    Raises:
        CheckError: with the error and the limit.
    """
    if not error <= LIMITS[precision]:
        raise CheckError(
            f"differs from float64 by {error:.2e} (relative L2), {precision} may by {LIMITS[precision]:.0e}: not timed"
        )


def is_random(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Whether two calls on the same input differ, as dropout's do: then there is nothing to compare with."""
    return any(not torch.equal(a, b) for a, b in zip(first, second, strict=True))

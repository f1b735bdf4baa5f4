"""The configuration of a conversion to sparsity-adaptive layers."""

from __future__ import annotations

import warnings
from dataclasses import InitVar, dataclass
from math import isfinite
from typing import Any, Literal, get_args

from lamina.accelerate.common.choices import check_choice
from lamina.errors import UsageError

Impl = Literal["auto", "dense", "nonzero", "row_union", "row_union_fp16", "reference"]
"""The implementation of a product.

- ``dense``: the vendor library.
- ``nonzero``: multiplies one non-zero at a time, from ELLPACK-DIB; activations are rounded to float16.
- ``row_union``: tensor cores over the rows that hold a non-zero in any column of a tile. Float32 activations are split
  into two float16 terms (``hi`` and ``lo``).
- ``row_union_fp16``: the same from float16-rounded activations, one term; never selected by ``auto``.
- ``reference``: from ELLPACK-DIB in plain PyTorch, on any device.
- ``auto``: selects for each phase by a cost model and the observed density.
"""

Weights = Literal["same", "bf16", "fp16"]
"""The dtype in which ``nonzero`` reads weights: their own, or 16 bits, which halves the traffic to shared memory that
limits the kernel."""

IMPLS: tuple[Impl, ...] = get_args(Impl)
WEIGHTS: tuple[Weights, ...] = get_args(Weights)

MIN_SPEEDUP = 1 / 0.9
"""A tenth of the dense time is saved: predictions are not exact."""

_RENAMED_IMPLS: dict[str, Impl] = {"union": "row_union", "rounded": "row_union_fp16"}
"""Values that earlier versions wrote to recipes, results and pickled layers."""


@dataclass(frozen=True)
class Sparse:
    """Let linear layers and convolutions skip the zeros of their operands where that is faster.

    Args:
        impl: the implementation of the new layers; see `Impl`. The former names ``union`` and ``rounded`` are read as
            ``row_union`` and ``row_union_fp16``.
        weights: the dtype in which ``nonzero`` reads weights.
        min_speedup: ``auto`` selects another implementation only if the dense time over its time is at least this.
        margin: deprecated; the share of the dense time to save, ``1 - 1 / min_speedup``.

    Raises:
        UsageError: an argument is invalid; the message says what was expected.
    """

    impl: Impl = "auto"
    weights: Weights = "same"
    min_speedup: float = MIN_SPEEDUP
    margin: InitVar[float | None] = None

    def __post_init__(self, margin: float | None) -> None:
        object.__setattr__(self, "impl", check_impl(self.impl))
        check_choice("weights", self.weights, WEIGHTS)
        if margin is not None:
            warnings.warn("margin is deprecated; use min_speedup=1 / (1 - margin)", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "min_speedup", speedup_of_margin(margin))
        check_min_speedup(self.min_speedup)


def check_impl(impl: str) -> Impl:
    """The implementation of a name; a former name gives the current one.

    Raises:
        UsageError: the name is unknown; the message names the nearest known one.
    """
    current: Any = _RENAMED_IMPLS.get(impl, impl) if isinstance(impl, str) else impl
    check_choice("impl", current, IMPLS)
    checked: Impl = current
    return checked


def check_min_speedup(min_speedup: Any) -> None:
    """Check the least speedup for which an implementation replaces the dense one.

    Raises:
        UsageError: it is not a finite number of at least 1.
    """
    if not (_is_finite(min_speedup) and min_speedup >= 1):
        raise UsageError(f"min_speedup: expected a finite number of at least 1, got {min_speedup!r}")


def speedup_of_margin(margin: Any) -> float:
    """``1 / (1 - margin)``: the speedup at which a share ``margin`` of the dense time is saved.

    Raises:
        UsageError: ``margin`` is not in ``[0, 1)``.
    """
    if not (_is_finite(margin) and 0 <= margin < 1):
        raise UsageError(f"margin: expected a share from 0 up to 1, got {margin!r}")
    return 1 / (1 - float(margin))


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)

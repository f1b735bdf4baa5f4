"""What a conversion to sparsity-adaptive layers is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, get_args

from lamina.accelerate.common.choices import check_choice as check_choice  # also read from here
from lamina.errors import UsageError

Impl = Literal["auto", "dense", "nonzero", "union", "rounded", "reference"]
"""How a product is computed: ``dense`` by the vendor library, ``nonzero`` one non-zero at a time from ELLPACK-DIB,
``union`` on tensor cores over the rows that a tile of columns has non-zeros in, ``rounded`` likewise from activations
that are rounded as ELLPACK-DIB rounds them, ``reference`` from ELLPACK-DIB in plain PyTorch; ``auto`` chooses for each
phase by a cost model and what is known of the density."""

Weights = Literal["same", "bf16", "fp16"]
"""The type in which ``nonzero`` reads weights: their own, or 16 bits, which halves what binds that kernel."""

IMPLS: tuple[Impl, ...] = get_args(Impl)
WEIGHTS: tuple[Weights, ...] = get_args(Weights)


@dataclass(frozen=True)
class Sparse:
    """Let linear layers and convolutions leave out the zeros of their operands where that is faster.

    Args:
        impl: how the new layers compute.
        weights: the type in which ``nonzero`` reads weights.
        margin: share of the dense time that another implementation must save before it is chosen.

    Raises:
        UsageError: naming what was expected.
    """

    impl: Impl = "auto"
    weights: Weights = "same"
    margin: float = 0.1

    def __post_init__(self) -> None:
        check_choice("impl", self.impl, IMPLS)
        check_choice("weights", self.weights, WEIGHTS)
        check_margin(self.margin)


def check_margin(margin: Any) -> None:
    """Refuse what is no share.

    Raises:
        UsageError: it is not within 0..1.
    """
    number = isinstance(margin, int | float) and not isinstance(margin, bool) and isfinite(margin)
    if not (number and 0 <= margin < 1):
        raise UsageError(f"margin: expected a share from 0 up to 1, got {margin!r}")

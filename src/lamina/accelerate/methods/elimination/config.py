"""What an elimination is asked to do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lamina.accelerate.common.choices import check_choice
from lamina.errors import UsageError

By = Literal["channel", "tap"]
"""What one synapse vector multiplies: an input channel under every tap of the window, or under one tap alone. Features
of a linear layer are channels."""

Recovery = Literal["scale", "bias", "least_squares", "none"]
"""How the vectors that stay make up for those that go: all by the factor ``K / (K - D)``; by the mean of what is
missing, in the bias; by weights fitted to calibration data; or not at all."""

Order = Literal["sorted", "swap", "prefix"]
"""Columns of the weights that stay: as they were; or kept ones of the end in the places of those that go; or by tap,
changed to the nearest choice in which every tap reads the first of one order of channels."""

Impl = Literal["auto", "gather", "swap", "slice", "pack", "kernel"]
"""How the inputs that stay reach the product: ``gather`` copies them first, ``swap`` copies those out of place,
``slice`` is a view of the first ones, ``pack`` copies them by a kernel and makes images channels-last, ``kernel`` looks
them up while it loads; ``auto`` chooses."""

BYS: tuple[By, ...] = get_args(By)
RECOVERIES: tuple[Recovery, ...] = get_args(Recovery)
ORDERS: tuple[Order, ...] = get_args(Order)
IMPLS: tuple[Impl, ...] = get_args(Impl)


@dataclass(frozen=True)
class Eliminated:
    """Eliminate synapse vectors of linear layers, convolutions and LSTM inputs.

    Args:
        recovery: how the others make up for those that go; fitted ones need calibration data.
        keep: share of vectors to keep, above 0 and up to 1; half, where ``alpha`` is not given either.
        alpha: correlation from which on one vector represents another, in place of ``keep``.
        by: what one vector is.
        group: neighbours that stay or go together, for wide loads of channels-last images.
        align: the number kept is rounded up to a multiple of this, or to all.
        order: where kept columns stand.
        impl: how the new layers compute.

    Raises:
        UsageError: naming what was expected.
    """

    recovery: Recovery = "scale"
    keep: float | None = None
    alpha: float | None = None
    by: By = "channel"
    group: int = 1
    align: int = 1
    order: Order = "sorted"
    impl: Impl = "auto"

    def __post_init__(self) -> None:
        if self.keep is not None and self.alpha is not None:
            raise UsageError(f"expected keep or alpha, got keep={self.keep} and alpha={self.alpha}; leave one out")
        if self.keep is None and self.alpha is None:
            object.__setattr__(self, "keep", 0.5)
        for name in ("keep", "alpha"):
            share = getattr(self, name)
            if share is not None and not (_number(share) and 0 < share <= 1):
                raise UsageError(f"{name}: expected a number above 0 and up to 1, got {share!r}")
        for name in ("group", "align"):
            check_whole(name, getattr(self, name))
        check_choice("recovery", self.recovery, RECOVERIES)
        check_choice("by", self.by, BYS)
        check_choice("order", self.order, ORDERS)
        if self.order == "prefix" and (self.by, self.group) != ("tap", 1):
            raise UsageError(
                f"order 'prefix': expected by='tap' and group=1, got by={self.by!r} and group={self.group}; "
                "align rounds the prefixes"
            )
        check_choice("impl", self.impl, IMPLS)


def check_whole(name: str, value: object) -> None:
    """Refuse what is no whole number of at least 1.

    Raises:
        UsageError: naming what was expected.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name}: expected a whole number of at least 1, got {value!r}")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

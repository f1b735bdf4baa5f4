"""Configuration of synapse vector elimination: structured pruning of input channels (DeftNN, section 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lamina.accelerate.common.choices import check_choice
from lamina.errors import UsageError

By = Literal["channel", "tap"]
"""What one synapse vector multiplies: an input channel at all taps of the kernel, or an input channel at one tap.
Features of a linear layer are channels."""

Select = Literal["correlation", "even"]
"""Which vectors are kept: ``correlation`` searches for those that represent others (DeftNN); ``even`` takes them at
equal distances, for weights that are not trained yet."""

Recovery = Literal["scale", "variance", "bias", "least_squares", "none"]
"""How the remaining weights compensate for ``D`` pruned of ``K`` inputs: ``scale`` multiplies them by ``K / (K - D)``
(DeftNN); ``variance`` by the root of that, as an initialization for fewer inputs would; ``bias`` adds the mean of the
pruned terms; ``least_squares`` fits them to calibration data; ``none`` does nothing."""

Order = Literal["sorted", "swap", "prefix"]
"""Order of the remaining weight columns: ``sorted`` as before; ``swap`` moves columns from the end into the gaps;
``prefix``, by tap, changes the index to the nearest one in which each tap reads a prefix of one order of channels."""

Impl = Literal["auto", "gather", "swap", "slice", "pack", "kernel"]
"""How the remaining inputs are read: ``gather`` copies them first; ``swap`` copies only those that have moved;
``slice`` is a view of a prefix; ``pack`` copies them by a kernel, which makes images channels-last; ``kernel`` reads
them through an index table; ``auto`` selects one."""

BYS: tuple[By, ...] = get_args(By)
SELECTS: tuple[Select, ...] = get_args(Select)
RECOVERIES: tuple[Recovery, ...] = get_args(Recovery)
ORDERS: tuple[Order, ...] = get_args(Order)
IMPLS: tuple[Impl, ...] = get_args(Impl)


@dataclass(frozen=True)
class Eliminated:
    """Prune input channels of linear layers, convolutions and LSTMs by synapse vector elimination.

    A synapse vector is the column of weights that multiplies one input. Of correlated vectors one is kept.

    Args:
        recovery: how the remaining weights compensate; ``bias`` and ``least_squares`` need calibration data.
        keep: keep ratio, the fraction of vectors to keep, in (0, 1]; 0.5 if ``alpha`` is not given either.
        alpha: correlation threshold above which one vector represents another, in place of ``keep``.
        by: what one vector is.
        group: neighbouring vectors that are kept or pruned together, for vectorized loads of channels-last images.
        align: the number of kept vectors is rounded up to a multiple of this, or to all.
        order: the order of the remaining columns.
        select: which vectors are kept at a keep ratio.
        impl: the implementation of the new layers.

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
    select: Select = "correlation"
    impl: Impl = "auto"

    def __post_init__(self) -> None:
        if self.keep is not None and self.alpha is not None:
            raise UsageError(f"expected keep or alpha, got keep={self.keep} and alpha={self.alpha}; omit one")
        if self.keep is None and self.alpha is None:
            object.__setattr__(self, "keep", 0.5)
        for name in ("keep", "alpha"):
            ratio = getattr(self, name)
            if ratio is not None and not (_is_finite(ratio) and 0 < ratio <= 1):
                raise UsageError(f"{name}: expected a number above 0 and up to 1, got {ratio!r}")
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
        check_choice("select", self.select, SELECTS)
        if self.select == "even" and self.keep is None:
            raise UsageError("select 'even': expected a keep ratio, since a threshold is one of correlations")
        check_choice("impl", self.impl, IMPLS)


def check_whole(name: str, value: object) -> None:
    """Refuse anything but an integer of at least 1.

    Raises:
        UsageError: naming what was expected.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name}: expected a whole number of at least 1, got {value!r}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

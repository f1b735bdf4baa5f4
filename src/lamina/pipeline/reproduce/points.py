"""Simulated results of the points of a published figure, each with its baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import hypot
from typing import Any

from lamina.errors import UsageError, nearest
from lamina.simulate.jobs import Result
from lamina.spec.points import SimulationPoint

SPEEDUP, TRANSACTIONS, HIT_RATE, LATENCY = "speedup", "L2 transactions", "L2 hit rate", "read latency"
ON_CHIP_BYTES, CONVERSION_SLOTS = "on-chip bytes", "conversion slots"
ON_CHIP, OFF_CHIP, ARITHMETIC, CONVERSION = "on-chip use", "off-chip use", "arithmetic use", "conversion use"
RATIO = "x"
"""Unit of ratios to the baseline; rates have none."""
RATIOS = {TRANSACTIONS: "l2_transactions", LATENCY: "read_latency", ON_CHIP_BYTES: "shared_bytes"}
"""The counters that are shown as ratios to the baseline. The latency is that of reads at L1."""
RATES = {HIT_RATE: "l2_hit_rate"}
"""The counters that are shown as they are, beside the baseline's."""
OWN = {
    ON_CHIP: "on_chip_use", OFF_CHIP: "off_chip_use", ARITHMETIC: "arithmetic_use", CONVERSION: "conversion_use",
    CONVERSION_SLOTS: "conversion_slots",
}  # fmt: skip
"""The counters that are shown as they are; recorded rows do not have the baseline's."""
COUNTERS = {**RATIOS, **RATES, **OWN}
"""The counter of each quantity, which is also the column of recorded rows."""
BASELINE = "baseline_"
"""Prefix of a column with a rate of the baseline."""


@dataclass(frozen=True)
class Pair:
    """One point beside its baseline.

    ``counters`` are values of the point and of its baseline, by quantity; ``baseline_us`` is the baseline's time.
    Without a result, ``reason`` says why.
    """

    point: SimulationPoint
    speedup: float | None
    baseline_us: float | None
    counters: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    uncertainty: float = 0.0
    """Relative error of the speedup, from sampling."""
    reason: str = ""

    @classmethod
    def of(cls, point: SimulationPoint, ours: Result, baseline: Result) -> Pair:
        """The pair of two simulations."""
        if not ours.run or not baseline.run:
            return cls(point, None, None, reason=ours.reason or baseline.reason)
        counters = {
            quantity: (ours.run.counters[name], baseline.run.counters[name])
            for quantity, name in COUNTERS.items()
            if ours.run.counters.get(name) is not None and baseline.run.counters.get(name) is not None
        }
        uncertainty = hypot(*(each.run.relative_error or 0.0 for each in (ours, baseline) if each.run))
        return cls(point, baseline.run.cycles / ours.run.cycles, baseline.microseconds, counters, uncertainty)

    @classmethod
    def recorded(cls, point: SimulationPoint, row: Mapping[str, Any] | None) -> Pair:
        """The pair of a recorded row, in which transactions and latencies are ratios to the baseline."""
        if row is None:
            return cls(point, None, None, reason="not recorded")
        ratios = {name: (row.get(column), 1.0) for name, column in RATIOS.items()}
        rates = {name: (row.get(column), row.get(BASELINE + column)) for name, column in RATES.items()}
        own = {name: (row.get(column), 0.0) for name, column in OWN.items()}
        counters = {**ratios, **rates, **own}
        known = {name: (ours, base) for name, (ours, base) in counters.items() if ours is not None and base is not None}
        return cls(point, row["speedup"], row["baseline_us"], known)

    def columns(self) -> dict[str, float | None]:
        """Its counters as the columns of a recorded row."""
        rates = {
            key: values[place] if (values := self.counted(name)) else None
            for name, column in RATES.items()
            for place, key in enumerate((column, BASELINE + column))
        }
        others = {COUNTERS[name]: quantity(name, self) for name in (*RATIOS, *OWN)}
        return {**others, **rates}

    def counted(self, quantity: str) -> tuple[float, float] | None:
        """The counter's values of the point and its baseline, if both have it."""
        return self.counters.get(quantity)


def _ratio(name: str) -> Callable[[Pair], float | None]:
    def of(pair: Pair) -> float | None:
        found = pair.counted(name)
        return found[0] / found[1] if found and found[1] else None

    return of


def _own(name: str) -> Callable[[Pair], float | None]:
    def of(pair: Pair) -> float | None:
        found = pair.counted(name)
        return found[0] if found else None

    return of


QUANTITIES: Mapping[str, tuple[Callable[[Pair], float | None], str]] = {
    SPEEDUP: (lambda pair: pair.speedup, RATIO),
    **{name: (_ratio(name), RATIO) for name in RATIOS},
    **{name: (_own(name), "") for name in (*RATES, *OWN)},
}
"""Quantities of a point in figures, with their units."""


def quantity(name: str, pair: Pair) -> float | None:
    """A quantity of a point; ``None`` without results or if the simulated unit does not count it.

    Raises:
        UsageError: there is no such quantity.
    """
    return _known(name)[0](pair)


def formatted(name: str, value: float) -> str:
    """A value with the unit of its quantity."""
    return f"{value:.3g} {_known(name)[1]}".strip()


def _known(name: str) -> tuple[Callable[[Pair], float | None], str]:
    if name not in QUANTITIES:
        raise UsageError(f"quantity {name!r} is unknown: {nearest(name, QUANTITIES)}")
    return QUANTITIES[name]

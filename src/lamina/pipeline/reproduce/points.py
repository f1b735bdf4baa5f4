"""Simulated results of the points of a published figure, each with its baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import hypot

from lamina.errors import UsageError, nearest
from lamina.simulate.jobs import Result
from lamina.spec.points import SimulationPoint

SPEEDUP, TRANSACTIONS, HIT_RATE, LATENCY = "speed-up", "L2 transactions", "L2 hit rate", "read latency"
RATIO = "x"
"""Unit of ratios to the baseline; rates have none."""
COUNTERS = {TRANSACTIONS: "l2_transactions", HIT_RATE: "l2_hit_rate", LATENCY: "read_latency"}
"""The counter of each quantity. The latency is that of reads at L1."""


@dataclass(frozen=True)
class Pair:
    """One point: the result of its layer, and the baseline's."""

    point: SimulationPoint
    ours: Result
    baseline: Result

    @property
    def reason(self) -> str:
        """Why one of the two has no result."""
        return self.ours.reason or self.baseline.reason

    @property
    def cycles(self) -> tuple[int, int] | None:
        """Cycles of the point and of its baseline."""
        ours, base = self.ours.run, self.baseline.run
        return (ours.cycles, base.cycles) if ours and base else None

    @property
    def speedup(self) -> float | None:
        return self.cycles[1] / self.cycles[0] if self.cycles else None

    @property
    def uncertainty(self) -> float:
        """Relative error of the speedup, from sampling."""
        return hypot(*(each.run.relative_error or 0.0 for each in (self.ours, self.baseline) if each.run))

    def counted(self, quantity: str) -> tuple[float, float] | None:
        """The counter's values of the point and its baseline, if both have it."""
        name = COUNTERS[quantity]
        ours, base = (each.run.counters.get(name) if each.run else None for each in (self.ours, self.baseline))
        return (ours, base) if ours is not None and base is not None else None


def _ratio(name: str) -> Callable[[Pair], float | None]:
    def of(pair: Pair) -> float | None:
        found = pair.counted(name)
        return found[0] / found[1] if found and found[1] else None

    return of


def _hit_rate(pair: Pair) -> float | None:
    found = pair.counted(HIT_RATE)
    return found[0] if found else None


QUANTITIES: Mapping[str, tuple[Callable[[Pair], float | None], str]] = {
    SPEEDUP: (lambda pair: pair.speedup, RATIO),
    TRANSACTIONS: (_ratio(TRANSACTIONS), RATIO),
    HIT_RATE: (_hit_rate, ""),
    LATENCY: (_ratio(LATENCY), RATIO),
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

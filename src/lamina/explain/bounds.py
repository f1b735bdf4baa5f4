"""What limits a phase: the busiest unit where counters tell, the nearest roof where only times do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from lamina.explain import metrics
from lamina.explain.launches import Launch, mean, total_us
from lamina.explain.roofline import LAUNCH_FACTOR, place
from lamina.record import LayerRun, Roofs

BoundKind = Literal["compute", "dram", "l2", "on-chip", "latency", "launch", "unknown"]

SATURATED = 60.0
"""Percent of its peak from which a unit is called the limit; Nsight Compute's own guidance draws the line there."""
COUNTED, TIMED, GUESSED = 0.9, 0.5, 0.3
"""Confidence in counters, in a roof that was nearly reached, and in one that was not."""
REACHED = 0.5
"""Part of a roof from which a phase is believed to be held by it."""

SAYS: dict[BoundKind, str] = {
    "compute": "arithmetic",
    "dram": "DRAM bandwidth",
    "l2": "L2 bandwidth",
    "on-chip": "the data pipe of shared memory",
    "latency": "latency, with no unit saturated",
    "launch": "launching, since its kernels are too short to do much",
    "unknown": "nothing that was measured",
}


@dataclass(frozen=True)
class Bound:
    """The limit of one phase.

    ``share`` is the part of the phase's kernel time that this limit holds, and ``held`` the kernels it holds;
    ``units`` the use of each unit by all of the phase's kernels, in percent of its peak, weighted by time; ``source``
    is ``counters`` or ``timings``.
    """

    kind: BoundKind
    share: float
    confidence: float
    source: Literal["counters", "timings"]
    units: Mapping[str, float] = field(default_factory=dict)
    held: tuple[Launch, ...] = field(default=(), repr=False)

    @cached_property
    def _by_unit(self) -> Mapping[str, list[Launch]]:
        """The kernels held, by the unit that holds each."""
        found: dict[str, list[Launch]] = {}
        for one in self.held:
            if self.kind in KINDS.values():
                found.setdefault(_busiest(_use(one.counters.get)), []).append(one)
        return found

    @property
    def unit(self) -> str:
        """The unit that holds the phase for longest; the empty text where none does or none was counted."""
        return max(self._by_unit, key=lambda unit: total_us(self._by_unit[unit]), default="")

    def __str__(self) -> str:
        """What limits the phase, in words that follow 'limited by'."""
        return f"{self.unit} ({units(self._by_unit[self.unit])[self.unit]:.0f} %)" if self.unit else SAYS[self.kind]


_UNITS: tuple[tuple[str, str, BoundKind], ...] = (
    ("tensor cores", metrics.TENSOR, "compute"),
    ("multiply-add units", metrics.FMA, "compute"),
    ("instruction issue", metrics.ISSUE, "compute"),
    ("DRAM", metrics.DRAM, "dram"),
    ("L2", metrics.L2, "l2"),
    ("shared memory pipe", metrics.SHARED, "on-chip"),
)
KINDS: Mapping[str, BoundKind] = {name: kind for name, _, kind in _UNITS}
"""What a phase is called that is limited by a unit."""
_LEAST = (metrics.DRAM, metrics.ISSUE)
"""Without these nothing can be said to be unsaturated."""


def bound(row: LayerRun, launches: Sequence[Launch], roofs: Roofs | None) -> Bound:
    """What limits one phase: that of its kernels' limits which holds for most of their time.

    Each kernel is limited by its busiest unit, or by latency where none reaches ``SATURATED``, or by launching
    where it is shorter than ``LAUNCH_FACTOR`` launches. Units of a multiprocessor count while it has warps, so
    that a grid that leaves some empty does not hide what the others wait for; memories count all the time.
    """
    all_us = total_us(launches)
    if all_us and all(mean(launches, metric) is not None for metric in _LEAST):
        held: dict[BoundKind, list[Launch]] = {}
        for one in launches:
            held.setdefault(limit(one, roofs), []).append(one)
        kind = max(held, key=lambda it: total_us(held[it]))
        share = total_us(held[kind]) / all_us
        return Bound(kind, share, COUNTED * share, "counters", units(launches), tuple(held[kind]))
    roofline = place(row, roofs)
    if roofline.bound == "launch":
        return Bound("launch", 1.0, TIMED, "timings")
    if roofline.bound in ("compute", "memory") and roofline.share is not None:
        confidence = TIMED if roofline.share >= REACHED else GUESSED
        return Bound("dram" if roofline.bound == "memory" else "compute", 1.0, confidence, "timings")
    return Bound("unknown", 1.0, 0.0, "timings")


def limit(launch: Launch, roofs: Roofs | None) -> BoundKind:
    """What limits one kernel; ``unknown`` without counters."""
    if roofs is not None and launch.us < LAUNCH_FACTOR * roofs.launch_us:
        return "launch"
    if any(metric not in launch.counters for metric in _LEAST):
        return "unknown"
    found = _use(launch.counters.get)
    busiest = _busiest(found)
    return KINDS[busiest] if found[busiest] >= SATURATED else "latency"


def _busiest(used: Mapping[str, float]) -> str:
    return max(used, key=lambda unit: used[unit])


def units(launches: Sequence[Launch]) -> dict[str, float]:
    """Use of each unit that was counted, in percent of its peak, weighted by time."""
    return _use(lambda metric: mean(launches, metric))


def _use(counted: Callable[[str], float | None]) -> dict[str, float]:
    found = {}
    for name, metric, _ in _UNITS:
        value = counted(metric)
        busy = counted(metrics.BUSY) if metric == metrics.SHARED else None
        if value is not None:
            # Counted over the whole kernel, unlike the other units of a multiprocessor.
            found[name] = min(value / busy * 100, 100.0) if busy else value
    return found

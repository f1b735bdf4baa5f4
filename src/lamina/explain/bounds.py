"""What limits a phase: its busiest hardware unit if counters were collected, else the nearer roofline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from lamina.explain import metrics
from lamina.explain.launches import Launch, mean, total_us
from lamina.explain.roofline import LAUNCH_FACTOR, roofline_of
from lamina.record import LayerRun, Roofs

BoundKind = Literal["compute", "dram", "l2", "on-chip", "latency", "launch", "unknown"]

SATURATED = 60.0
"""Utilization, in percent of peak, from which a unit is the limiter; Nsight Compute's guidance uses the same value."""
COUNTED, TIMED, FAR_FROM_ROOFLINE = 0.9, 0.5, 0.3
"""Confidence with counters, with times near the roofline, and with times far below it."""
REACHED = 0.5
"""Fraction of the roofline from which a phase is taken to be limited by it."""

DESCRIPTIONS: dict[BoundKind, str] = {
    "compute": "compute throughput",
    "dram": "DRAM bandwidth",
    "l2": "L2 bandwidth",
    "on-chip": "shared memory bandwidth",
    "latency": "latency (no unit is saturated)",
    "launch": "launch overhead (its kernels are too short)",
    "unknown": "nothing that was measured",
}


@dataclass(frozen=True)
class Bound:
    """What limits one phase.

    Attributes:
        kind: ``compute``, ``dram``, ``l2``, ``on-chip`` (shared memory and L1), ``latency``, ``launch`` or ``unknown``.
        share: fraction of the phase's kernel time in kernels that have this limiter.
        confidence: from 0 to 1.
        source: ``counters`` or ``timings``.
        units: utilization of each unit over all kernels of the phase, in percent of peak, weighted by time.
        launches: the kernel launches that have this limiter.
    """

    kind: BoundKind
    share: float
    confidence: float
    source: Literal["counters", "timings"]
    units: Mapping[str, float] = field(default_factory=dict)
    launches: tuple[Launch, ...] = field(default=(), repr=False)

    @cached_property
    def _by_unit(self) -> Mapping[str, list[Launch]]:
        """The launches, by the unit that limits each."""
        found: dict[str, list[Launch]] = {}
        for one in self.launches:
            if self.kind in KINDS.values():
                found.setdefault(_busiest(_use(one.counters.get)), []).append(one)
        return found

    @property
    def unit(self) -> str:
        """The unit that limits most of the phase's time; empty if none does or no counters were collected."""
        return max(self._by_unit, key=lambda unit: total_us(self._by_unit[unit]), default="")

    def __str__(self) -> str:
        """The limiter, as text that follows 'limited by'."""
        return (
            f"{self.unit} ({units(self._by_unit[self.unit])[self.unit]:.0f} %)"
            if self.unit
            else DESCRIPTIONS[self.kind]
        )


_UNITS: tuple[tuple[str, str, BoundKind], ...] = (
    ("tensor cores", metrics.TENSOR, "compute"),
    ("FMA units", metrics.FMA, "compute"),
    ("instruction issue", metrics.ISSUE, "compute"),
    ("DRAM", metrics.DRAM, "dram"),
    ("L2", metrics.L2, "l2"),
    ("shared memory", metrics.SHARED, "on-chip"),
)
KINDS: Mapping[str, BoundKind] = {name: kind for name, _, kind in _UNITS}
"""The kind of limit that each unit stands for."""
_REQUIRED = (metrics.DRAM, metrics.ISSUE)
"""Counters without which latency cannot be distinguished from a saturated unit without counters."""


def bound(row: LayerRun, launches: Sequence[Launch], roofs: Roofs | None) -> Bound:
    """What limits one phase: the limiter that most of its kernel time has.

    A kernel is limited by its busiest unit, by latency if no unit reaches ``SATURATED``, or by launch overhead if it
    is shorter than ``LAUNCH_FACTOR`` launches. Utilization of units inside an SM is taken over the cycles in which the
    SM has warps, so idle SMs of a small grid do not hide the limiter of the others; that of memories over all cycles.
    """
    all_us = total_us(launches)
    if all_us and all(mean(launches, metric) is not None for metric in _REQUIRED):
        groups: dict[BoundKind, list[Launch]] = {}
        for one in launches:
            groups.setdefault(limiter(one, roofs), []).append(one)
        kind = max(groups, key=lambda it: total_us(groups[it]))
        share = total_us(groups[kind]) / all_us
        return Bound(kind, share, COUNTED * share, "counters", units(launches), tuple(groups[kind]))
    roofline = roofline_of(row, roofs)
    if roofline.bound == "launch":
        return Bound("launch", 1.0, TIMED, "timings")
    if roofline.bound in ("compute", "memory") and roofline.share is not None:
        confidence = TIMED if roofline.share >= REACHED else FAR_FROM_ROOFLINE
        return Bound("dram" if roofline.bound == "memory" else "compute", 1.0, confidence, "timings")
    return Bound("unknown", 1.0, 0.0, "timings")


def limiter(launch: Launch, roofs: Roofs | None) -> BoundKind:
    """What limits one kernel; ``unknown`` without counters."""
    if roofs is not None and launch.us < LAUNCH_FACTOR * roofs.launch_us:
        return "launch"
    if any(metric not in launch.counters for metric in _REQUIRED):
        return "unknown"
    found = _use(launch.counters.get)
    busiest = _busiest(found)
    return KINDS[busiest] if found[busiest] >= SATURATED else "latency"


def _busiest(used: Mapping[str, float]) -> str:
    return max(used, key=lambda unit: used[unit])


def units(launches: Sequence[Launch]) -> dict[str, float]:
    """Utilization of each unit that has counters, in percent of peak, weighted by time."""
    return _use(lambda metric: mean(launches, metric))


def _use(counted: Callable[[str], float | None]) -> dict[str, float]:
    found = {}
    for name, metric, _ in _UNITS:
        value = counted(metric)
        busy = counted(metrics.BUSY) if metric == metrics.SHARED else None
        if value is not None:
            # Nsight Compute has this one over elapsed cycles only, unlike the other units of an SM.
            found[name] = min(value / busy * 100, 100.0) if busy else value
    return found

"""Designs of a swept space: each one's time over its layers, its speed-up over a baseline, its SRAM; the best ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lamina.simulate.jobs import Result, Settings, Value

Workload = tuple[str, int]
"""A network and its batch size: what designs are compared on."""


@dataclass(frozen=True)
class Design:
    """One configuration on one workload. ``settings`` are those that were swept.

    ``speedup`` is the baseline's time over this one's, both summed over the same layers; ``None``, with the
    ``reason``, where a layer of either has no result. ``front``: no other design of the workload is at least as
    fast with at most as much SRAM, and better in one of the two.
    """

    network: str
    batch: int
    settings: Settings
    layers: int
    microseconds: float | None
    speedup: float | None
    sram_bytes: int
    front: bool = False
    reason: str = ""

    def to_dict(self) -> dict[str, Value | None]:
        return {
            "network": self.network,
            "batch": self.batch,
            **self.settings,
            "layers": self.layers,
            "microseconds": self.microseconds,
            "speedup": self.speedup,
            "sram_bytes": self.sram_bytes,
            "front": self.front,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Point:
    """One configuration of a sweep: its swept settings, the results of all its layers, and the baseline's of these."""

    settings: Settings
    results: tuple[Result, ...]
    baseline: tuple[Result, ...]

    @property
    def workload(self) -> Workload:
        return self.results[0].job.network, self.results[0].job.batch


def designs(points: Iterable[Point]) -> tuple[Design, ...]:
    """Every point beside its baseline, the fronts marked."""
    found = [_design(point) for point in points]
    fronts = {place for workload in {(one.network, one.batch) for one in found} for place in _front(found, workload)}
    return tuple(replace(one, front=place in fronts) for place, one in enumerate(found))


def _design(point: Point) -> Design:
    network, batch = point.workload
    time, reason = _time(point.results)
    base, missing = _time(point.baseline)
    return Design(
        network,
        batch,
        point.settings,
        len(point.results),
        time,
        base / time if base and time else None,
        max(each.job.sram_bytes for each in point.results),
        reason=reason or (f"baseline: {missing}" if missing else ""),
    )


def _front(found: Sequence[Design], workload: Workload) -> Iterator[int]:
    """Places of the designs that no other beats: by rising SRAM, each that is faster than all before."""
    own = [
        (one.sram_bytes, -one.speedup, place)
        for place, one in enumerate(found)
        if (one.network, one.batch) == workload and one.speedup is not None
    ]
    best = (0, 0.0)
    for sram, slowness, place in sorted(own):
        if slowness < best[1]:
            best = (sram, slowness)
        if (sram, slowness) == best:
            yield place


def _time(results: Sequence[Result]) -> tuple[float | None, str]:
    """Microseconds of all layers together, or why they are not known."""
    for each in results:
        if each.microseconds is None:
            return None, f"{each.job.layer}: {each.reason}"
    return sum(each.microseconds or 0.0 for each in results), ""

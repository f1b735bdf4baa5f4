"""Designs of a sweep: time over the layers, speedup over a baseline, SRAM, and the Pareto front."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lamina.simulate.jobs import Result, Settings, Value

Workload = tuple[str, int]
"""A network and its batch size, on which designs are compared."""


@dataclass(frozen=True)
class Design:
    """One configuration on one workload. ``settings`` are the swept ones.

    ``speedup`` is the baseline's time over this one's, both summed over the same layers; ``None``, with a ``reason``,
    if a layer of either has no result. ``front``: the design is Pareto-optimal in time and SRAM for its workload.
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
class DesignPoint:
    """One configuration of a sweep: its swept settings, and the results of all layers for it and its baseline."""

    settings: Settings
    results: tuple[Result, ...]
    baseline: tuple[Result, ...]

    @property
    def workload(self) -> Workload:
        return self.results[0].job.network, self.results[0].job.batch


def designs(points: Iterable[DesignPoint]) -> tuple[Design, ...]:
    """The design of every point, with the Pareto fronts marked."""
    found = [_design(point) for point in points]
    fronts = {index for workload in {(one.network, one.batch) for one in found} for index in _front(found, workload)}
    return tuple(replace(one, front=index in fronts) for index, one in enumerate(found))


def _design(point: DesignPoint) -> Design:
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
    """Indices of the Pareto-optimal designs: by increasing SRAM, each that is faster than all before."""
    own = [
        (one.sram_bytes, -one.speedup, index)
        for index, one in enumerate(found)
        if (one.network, one.batch) == workload and one.speedup is not None
    ]
    best = (0, 0.0)
    for sram, slowness, index in sorted(own):
        if slowness < best[1]:
            best = (sram, slowness)
        if (sram, slowness) == best:
            yield index


def _time(results: Sequence[Result]) -> tuple[float | None, str]:
    """Total microseconds of all layers, or the reason why they are unknown."""
    for each in results:
        if each.microseconds is None:
            return None, f"{each.job.layer}: {each.reason}"
    return sum(each.microseconds or 0.0 for each in results), ""

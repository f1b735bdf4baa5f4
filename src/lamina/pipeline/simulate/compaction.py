"""``simulate compaction-engine``: convolutions with the engine, against dense, with bounds and an ablation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lamina.pipeline.simulate import Planner, Simulated
from lamina.record import SimRun
from lamina.simulate.compaction_engine.attribution import NEEDED, Gain, attribution
from lamina.simulate.compaction_engine.bounds import Bounds, bounds
from lamina.simulate.compaction_engine.unit import Control
from lamina.simulate.jobs import Job, Result, Settings, Value

UNIT = "compaction-engine"
SHOWN = (
    "l2_transactions", "l2_hit_rate", "read_latency", "dram_lines", "dram_gb_per_second", "engine_occupancy",
    "search_occupancy", "sib_hit_rate", "buffer_hit_rate", "accurate_share", "prudent_share", "hasty_share",
    "lines_per_compacted_line",
)  # fmt: skip
"""Measures of each run in the rows."""
Simulate = Callable[[Sequence[Job]], Simulated]
"""Runs jobs, as ``simulate`` does with a store and an engine."""


@dataclass(frozen=True)
class LayerGain:
    """A layer with the engine and with every requested control; ``None`` if a run has no result."""

    jobs: Mapping[Control, Job]
    runs: Mapping[Control, SimRun | None]
    reason: str = ""

    @property
    def bounds(self) -> Bounds | None:
        run, job = self.runs["engine"], self.jobs["engine"]
        if run is None:
            return None
        return bounds(job.gemm, job.device, run.counters["density"], run.counters["line_density"])

    @property
    def gains(self) -> tuple[Gain, ...]:
        """The gain of every change; empty unless all controls that it needs were run."""
        cycles = {name: run.cycles for name, run in self.runs.items() if run is not None}
        return attribution(cycles) if set(NEEDED) <= set(cycles) else ()

    def speedup(self, control: Control = "engine") -> float | None:
        """Speedup over the dense kernel."""
        dense, run = self.runs["dense"], self.runs[control]
        return dense.cycles / run.cycles if dense and run else None

    @property
    def speedup_bound(self) -> float | None:
        """Maximum speedup of any engine over the simulated dense kernel: its time over the least of the product."""
        dense, limits = self.runs["dense"], self.bounds
        return limits.speedup(dense.cycles) if dense and limits else None

    def to_dict(self) -> dict[str, Value | None]:
        """Plain values, one row per layer; names are prefixed by the control.

        ``speedup_bound`` bounds ``speedup``; ``dense_fraction`` is that of the roofline which the dense kernel reaches.
        The ideal speedups are those of kernels without stalls.
        """
        job, limits, dense = self.jobs["engine"], self.bounds, self.runs["dense"]
        gemm = job.gemm
        row: dict[str, Value | None] = {
            "network": job.network, "layer": job.layer, "batch": job.batch, "device": job.device.name,
            "groups": gemm.groups, "m": gemm.m, "n": gemm.n, "k": gemm.k,
            "density": limits.density if limits else None,
            "speedup": self.speedup(),
            "speedup_bound": _finite(self.speedup_bound),
            "dense_fraction": limits.dense_fraction(dense.cycles) if limits and dense else None,
            "ideal_mac_skip": _finite(limits.mac_skip if limits else None),
            "ideal_roofline": _finite(limits.roofline if limits else None),
            "ideal_compact": _finite(limits.roofline_compact if limits else None),
        }  # fmt: skip
        row |= {gain.change.replace(" ", "_"): gain.factor for gain in self.gains}
        for control, run in self.runs.items():
            name = control.replace("-", "_")
            row[f"{name}_cycles"] = run.cycles if run else None
            row[f"{name}_relative_error"] = run.relative_error if run else None
            row |= {f"{name}_{key}": run.counters[key] if run else None for key in SHOWN if run and key in run.counters}
        return row | {"reason": self.reason}


@dataclass(frozen=True)
class Gains:
    """All layers of a network."""

    simulated: Simulated
    layers: tuple[LayerGain, ...]

    def speedup(self, control: Control = "engine") -> float | None:
        """Speedup over all layers: the sum of dense times over the sum of this control; ``None`` if one is missing."""
        dense = _sum(layer.runs["dense"] for layer in self.layers)
        own = _sum(layer.runs[control] for layer in self.layers)
        return dense / own if dense and own else None

    @property
    def speedup_bound(self) -> float | None:
        """Maximum speedup over all layers; ``None`` if a run is missing or no time is needed."""
        dense, limits = _sum(layer.runs["dense"] for layer in self.layers), [layer.bounds for layer in self.layers]
        least = sum(each.skipping for each in limits if each)
        return dense / least if dense and least and None not in limits else None


def plan(
    settings: Settings,
    layers: Sequence[str] = (),
    controls: Sequence[Control] = (),
    planner: Planner | None = None,
) -> dict[str, dict[Control, Job]]:
    """The jobs of each layer: with the engine, dense, and with every given control.

    Raises:
        UsageError, SpecError: as ``Planner.jobs``.
    """
    planner, planned = planner or Planner(), dict[str, dict[Control, Job]]()
    variants = [{**settings, "layer": layer} for layer in layers] or [dict(settings)]
    for control in dict.fromkeys(("engine", "dense", *controls)):
        for each in variants:
            for job in planner.jobs({**each, "unit": UNIT, "control": control}):
                planned.setdefault(job.layer, {})[control] = job
    return planned


def gains(planned: Mapping[str, Mapping[Control, Job]], run: Simulate) -> Gains:
    """Simulate the planned jobs and pair them by layer."""
    done = run([job for jobs in planned.values() for job in jobs.values()])
    found = {result.job.key: result for result in done.results}
    return Gains(done, tuple(_layer(jobs, found) for jobs in planned.values()))


def _layer(jobs: Mapping[Control, Job], found: Mapping[str, Result]) -> LayerGain:
    results = {control: found[job.key] for control, job in jobs.items()}
    missing = [f"{control}: {result.reason}" for control, result in results.items() if result.run is None]
    return LayerGain(jobs, {control: result.run for control, result in results.items()}, "; ".join(missing))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _sum(runs: Iterable[SimRun | None]) -> int | None:
    cycles = [run.cycles if run else None for run in runs]
    return None if None in cycles else sum(each for each in cycles if each is not None)

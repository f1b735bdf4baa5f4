"""The energy of each phase of a profile, by repeating the phase alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from lamina import measure, run
from lamina.build import Target
from lamina.pipeline.guard import Guard
from lamina.pipeline.prepared import Prepared
from lamina.pipeline.targets import implementation, only, or_dense
from lamina.pipeline.watch import Watch
from lamina.record import LayerRun
from lamina.spec import Point, Workload


def energy_meter(device: torch.device, seconds: float, watch: Watch) -> measure.EnergyMeter | None:
    """What measures energy for ``seconds`` each time; ``None`` if that is 0, or, as is said, without a counter."""
    if not seconds:
        return None
    meter = measure.EnergyMeter(device, seconds)
    if reason := meter.refusal:
        watch(f"{reason}; the energy of layers is not measured")
        return None
    return meter


def with_energy(
    rows: Sequence[LayerRun],
    target: Target,
    workload: Workload,
    point: Point,
    network: Prepared,
    meter: measure.EnergyMeter,
    guard: Guard,
    watch: Watch,
) -> tuple[LayerRun, ...]:
    """The rows that have a time with the energy of one execution of their phase, in joules.

    Each phase runs again and again on what its neighbours made, as it does where layers are timed one by one.
    """
    places = {(row.place, row.phase): row for row in rows if row.timing}
    found: dict[LayerRun, float | None] = {}
    with meter.stream():
        implement = only(network.selected, or_dense(implementation(point), {}))
        visits = network.visits(target, workload, point, implement, guard, check=False)
        for step in (one for visit in visits for one in visit):
            row = places.get((network.places[step.place], step.phase.value))
            if row is None or step.call is None:
                continue
            try:
                found[row] = meter.per_call_j(step.call)
            except RuntimeError as error:  # such as memory for a graph; the time stays
                watch(f"no energy of {row.layer} {row.phase}: {run.one_line(error)}")
    return tuple(replace(row, energy_j=found.get(row)) for row in rows)

"""One point of a profile: an iteration's rows, its kernels, and the share of device time that is attributed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

import torch
from torch import nn

from lamina import measure, run
from lamina.accelerate.select import executed
from lamina.build import Target
from lamina.build.data import Dataset
from lamina.errors import DeviceLostError, UnsupportedError
from lamina.pipeline.converted import convert_network
from lamina.pipeline.guard import Guard
from lamina.pipeline.prepared import Prepared, prepare
from lamina.pipeline.profile.energy import energy_meter, with_energy
from lamina.pipeline.rows import joined, layer_row, network_row
from lamina.pipeline.targets import implementation, only, or_dense
from lamina.pipeline.timing import repeat_of
from lamina.pipeline.watch import Planned, Watch, unwatched
from lamina.record import Coverage, KernelRun, LayerRun, Timing
from lamina.spec import Method, Phase, Point, Workload

WARMUP = 3
REPETITIONS = 10
At = tuple[int, Phase]
"""Which layer of the network, and which phase of it."""


@dataclass(frozen=True)
class Options:
    """What a profile asks for besides a workload.

    ``training``: whether layers such as dropout behave as in training. ``autotune``: whether the library times its
    algorithms first; a second process may then choose others, and its counters do not count. ``energy_s``: seconds for
    which each phase is repeated to measure its energy; 0 not to. ``detail_batch``: the batch sizes at which counters
    are read and energy is measured; by default all.
    """

    training: bool = True
    autotune: bool = False
    energy_s: float = 0.0
    detail_batch: tuple[int, ...] = ()

    def detailed(self, batch: int) -> bool:
        """Whether counters are read and energy is measured at a batch size."""
        return not self.detail_batch or batch in self.detail_batch


DEFAULT = Options()


@dataclass(frozen=True)
class Profiled:
    """What one point of the grid gave: rows, the kernels of those with a time, and where the device's time went."""

    rows: tuple[LayerRun, ...]
    kernels: tuple[KernelRun, ...] = ()
    coverage: Coverage | None = None


def profile_point(
    target: Target,
    workload: Workload,
    point: Point,
    options: Options,
    data: Dataset | None,
    device: torch.device,
    device_name: str,
    watch: Watch,
    guard: Guard | None = None,
) -> Profiled:
    """Measure one point; where the network cannot run at all, its row says why.

    Args:
        guard: watches over each layer, and has those that must not run: their rows fail. By default, it only watches.

    Raises:
        DeviceLostError: a layer made the GPU unusable.
    """
    guard = guard or Guard(target.name, str(point.method), device, unwatched)
    with run.precision_mode(point.precision, options.autotune):
        network = prepare(target, workload, point, data, device, watch, options.training)
        layers = [call.resolved for call in network.layers.calls]
        whole = network_row(target, layers, workload.phases, point, network.batch, device_name)
        calls = [call for call in network.trace.calls if call.resolved.name in network.selected]
        planned = sum(len(call.resolved.phases) for call in calls) + (not workload.layers)
        watch(Planned(target.name, replace(point, batch=network.batch), planned))
        meter = measure.Meter(device)
        try:
            if reason := guard.lost.get(guard.iteration):
                raise UnsupportedError(reason)
            errors = _errors(target, workload, point, network, guard)
            refusals: dict[str, str] = {}
            iteration = iteration_of(target, point, network, refusals, guard.lost)
            iteration.run(partial(_guarded, network, guard))
            blank = partial(_blank, network, point, device_name)
            rows = _rows(iteration, blank, errors, refusals)
            with guard(guard.iteration, "timing"):
                warm_up(iteration)
                if device.type == "cpu":
                    watch("no GPU: times of the CPU, without kernels and counters")
                    found = _on_cpu(iteration, rows, workload.repeat or REPETITIONS)
                else:
                    found = _on_gpu(iteration, rows, blank, workload.repeat or REPETITIONS, device, watch)
            del iteration  # and with it the activations, before the whole step needs its own
            energy = energy_meter(device, options.energy_s * options.detailed(network.batch), watch)
            if energy is not None:
                rows_found = with_energy(found.rows, target, workload, point, network, energy, guard, watch)
                found = replace(found, rows=rows_found)
        except DeviceLostError:
            raise
        except Exception as error:  # whatever the code of a user's module raises
            return Profiled((replace(whole, outcome="failed", reason=run.one_line(error), executed_impl=""),))
        found = _of_layers(found, network.selected)
        rows_found = tuple(_noted(row, meter) for row in found.rows)
        if target.standalone or workload.layers:
            return replace(found, rows=rows_found)
        if guard.whole_lost:
            step = replace(whole, outcome="failed", reason=guard.whole_lost, executed_impl="")
            return replace(found, rows=(*rows_found, step))
        with guard(target.name, "timing"):
            step = _whole(whole, network, point, target, device, repeat_of(workload), energy)
        return replace(found, rows=(*rows_found, _noted(step, meter)))


def _noted(row: LayerRun, meter: measure.Meter) -> LayerRun:
    """The row with what disturbed its time."""
    return replace(row, note=joined(row.note, meter.note(row.timing))) if row.timing else row


def iteration_of(
    target: Target,
    point: Point,
    network: Prepared,
    refusals: dict[str, str] | None = None,
    lost: Mapping[str, str] = MappingProxyType({}),
) -> run.Iteration:
    """The iteration of a network that is ready. Layers that the method cannot replace run dense.

    Args:
        refusals: is filled with the names of these, and the reasons.
        lost: layers that must not run, and why.
    """
    return run.Iteration(
        network.trace,
        network.inputs,
        seed_gradient=network.seed,
        backward=network.backward,
        input_gradients=target.input_gradients,
        implement=only(network.selected, or_dense(implementation(point), {} if refusals is None else refusals)),
        lost=lost,
    )


def _of_layers(found: Profiled, names: Collection[str]) -> Profiled:
    """The rows and kernels of some layers. The coverage is that of all: every layer ran."""
    rows = tuple(row for row in found.rows if row.layer in names)
    keys = {row.key for row in rows}
    return replace(found, rows=rows, kernels=tuple(one for one in found.kernels if one.key in keys))


def warm_up(iteration: run.Iteration) -> None:
    """Run it until libraries have chosen their kernels and memory is allocated."""
    for _ in range(WARMUP):
        iteration.run(lambda place, phase: nullcontext())


def _guarded(network: Prepared, guard: Guard, index: int, phase: Phase) -> AbstractContextManager[None]:
    return guard(network.trace.calls[index].name, phase.value)


def _errors(target: Target, workload: Workload, point: Point, network: Prepared, guard: Guard) -> dict[At, run.Step]:
    """Every phase compared with float64, where the workload asks for it."""
    if not workload.check:
        return {}
    visits = network.visits(target, workload, point, or_dense(implementation(point), {}), guard)
    # A step holds the tensors of its layer, so only what it found out is kept.
    return {(step.place, step.phase): replace(step, call=None, module=None) for visit in visits for step in visit}


def _blank(network: Prepared, point: Point, device: str, index: int, phase: Phase) -> LayerRun:
    resolved = network.trace.calls[index].resolved
    return layer_row(resolved, network.places[index], phase, point, network.batch, device)


def _rows(
    iteration: run.Iteration,
    blank: Callable[[int, Phase], LayerRun],
    errors: Mapping[At, run.Step],
    refusals: Mapping[str, str],
) -> dict[At, LayerRun]:
    """A row for each phase, those without a time complete with their reason."""
    rows: dict[At, LayerRun] = {}
    for place in range(len(iteration.trace.calls)):
        for phase, reason in iteration.phases(place).items():
            row = _ran(blank(place, phase), iteration.target(place), refusals)
            checked = errors.get((place, phase))
            if row.layer in iteration.lost:
                row = replace(row, outcome="failed", reason=iteration.lost[row.layer], executed_impl="")
            elif checked is not None and checked.outcome == "failed":
                row = replace(row, outcome="failed", reason=checked.reason, executed_impl="")
            elif reason:
                row = replace(row, outcome="skipped", reason=reason, executed_impl="")
            elif checked is not None:
                row = replace(row, rel_error=checked.rel_error, note=checked.note)
            rows[place, phase] = row
    return rows


def _ran(row: LayerRun, layer: nn.Module | None, refusals: Mapping[str, str]) -> LayerRun:
    """The row with the implementation that the layer ran."""
    if row.layer in refusals:
        return replace(row, executed_impl="dense", selection_reason=refusals[row.layer])
    if layer is None:
        return row
    impl, reason = executed(layer, row.impl, row.phase)
    parameters = sum(weight.numel() for weight in layer.parameters() if weight.requires_grad)
    return replace(row, parameters=parameters, executed_impl=impl, selection_reason=reason)


def _on_cpu(iteration: run.Iteration, rows: Mapping[At, LayerRun], repetitions: int) -> Profiled:
    times: measure.HostTimes[At] = measure.HostTimes()
    for _ in range(repetitions):
        iteration.run(lambda place, phase: times.range((place, phase)))
    timings = {at: measure.summarize(samples, "cpu", "-") for at, samples in times.samples_us.items()}
    return Profiled(tuple(_with_time(row, timings.get(at)) for at, row in rows.items()))


def _on_gpu(
    iteration: run.Iteration,
    rows: Mapping[At, LayerRun],
    blank: Callable[[int, Phase], LayerRun],
    repetitions: int,
    device: torch.device,
    watch: Watch,
) -> Profiled:
    memory: measure.MemoryUse[At] = measure.MemoryUse(device)
    iteration.run(lambda place, phase: memory.range((place, phase)))
    with measure.record_kernels(device) as session:
        for repetition in range(repetitions):
            iteration.run(partial(_in_session, session, repetition))
    tally: measure.Tally[At] = measure.Tally()
    tally.add(session.attribution)
    found = tally.report("warm")
    # A layer whose backward pass only hands gradients on has no such phase, but may have to copy them.
    homes = dict(rows) | {
        (place, phase): blank(place, phase)
        for (place, phase), kernels in found.kernels.items()
        if kernels and (place, phase) not in rows
    }
    timed = {
        at: replace(
            _with_time(row, found.timings.get(at)),
            peak_bytes=memory.peak_bytes.get(at),
            live_bytes=memory.live_bytes.get(at),
        )
        for at, row in homes.items()
    }
    launches = tuple(
        KernelRun(row.key, i, one.name, one.grid, one.block, one.registers, one.shared_bytes, one.duration_ns / 1e3)
        for at, row in timed.items()
        if row.timing
        for i, one in enumerate(found.kernels[at])
    )
    coverage = _coverage(session.attribution, blank(0, Phase.FORWARD), launches, repetitions)
    if found.unrecorded:
        watch(f"{found.unrecorded} kernel launches have no CUPTI record: they are in no timing")
    return Profiled(tuple(timed.values()), launches, coverage)


def _in_session(
    session: measure.KernelSession[tuple[At, int]], repetition: int, place: int, phase: Phase
) -> AbstractContextManager[None]:
    return session.range(((place, phase), repetition))


def _with_time(row: LayerRun, timing: Timing | None) -> LayerRun:
    """The row with its time, unless it is to have none."""
    if row.outcome != "ok":
        return row
    if timing is None:
        return replace(row, outcome="skipped", reason="no gradient reaches it", executed_impl="")
    return replace(row, timing=timing)


def _coverage(
    found: measure.Attribution[tuple[At, int]], like: LayerRun, launches: Sequence[KernelRun], repetitions: int
) -> Coverage:
    """Device time of the mean iteration; launches between the ranges are not attributed either."""
    strays: dict[str, float] = {}
    for one in (*found.outside, *found.unattributed):
        strays[one.name] = strays.get(one.name, 0.0) + one.duration_ns / 1e3 / repetitions
    inside_ns = sum(one.duration_ns for home in found.ranges.values() for one in home)
    return Coverage(
        like.impl, like.precision, like.layout, like.batch, len(launches), inside_ns / 1e3 / repetitions, strays
    )


def _whole(
    row: LayerRun,
    network: Prepared,
    point: Point,
    target: Target,
    device: torch.device,
    repeat: measure.Repeat,
    energy: measure.EnergyMeter | None = None,
) -> LayerRun:
    """The network's row with the time that a training loop waits for its step: no profiler, no ranges."""
    clock = measure.clock("wall" if device.type == "cuda" else "cpu", device)
    converted = convert_network(network.module, network.layers, point.method)
    if point.method != Method():
        row = replace(row, parameters=converted.parameters)
    call = run.whole_step(converted.module, network.inputs, network.seed, network.backward, target.input_gradients)
    time = measure.time_each(clock, {row: call}, repeat=repeat)[row]
    if isinstance(time, Exception):
        return replace(row, outcome="failed", reason=f"{clock.name}: {run.one_line(time)}", executed_impl="")
    with measure.peak_memory(device) as peak:
        call()
    impl, reason = converted.executed()
    joules = energy.per_call_j(call, captured=False) if energy else None
    return replace(
        row, timing=time, peak_bytes=peak.bytes, executed_impl=impl, selection_reason=reason, energy_j=joules
    )

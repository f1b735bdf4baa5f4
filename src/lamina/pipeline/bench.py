"""``bench``: every phase of every layer, checked against float64, timed, and stored as it is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import get_args

import torch

from lamina import measure, run
from lamina.accelerate.select import executed
from lamina.build import Target
from lamina.build.data import Dataset
from lamina.build.data import load as load_data
from lamina.errors import DeviceLostError, UsageError, nearest
from lamina.pipeline.converted import convert_network
from lamina.pipeline.guard import Guard, Lost, lost_by
from lamina.pipeline.prepared import prepare
from lamina.pipeline.rows import joined, layer_row, network_row
from lamina.pipeline.runs import begin, closing
from lamina.pipeline.selected import How, Selected, select_layers
from lamina.pipeline.targets import implementation, require_known
from lamina.pipeline.timing import repeat_of
from lamina.pipeline.watch import Planned, Watch, unwatched
from lamina.record import LayerRun, Mode, Run
from lamina.record.noise import disturbed
from lamina.spec import Method, Point, Workload
from lamina.store import Store


def bench(
    target: Target,
    workload: Workload,
    store: Store,
    *,
    cache: Path,
    command: str = "",
    resume: bool = False,
    select: How = "none",
    lost: Lost = MappingProxyType({}),
    watch: Watch = unwatched,
) -> Run:
    """Measure every phase of every layer at every point of the workload; each row is stored as it is measured.

    Args:
        target: the network.
        workload: the grid of ways to run it.
        store: where rows go.
        cache: folder of the machine's measured peaks and of selections.
        command: the command line, for provenance.
        resume: complete the last unfinished run of the same work instead of starting anew.
        select: with ``measure`` or ``model``, a layer that its method does not make faster runs dense, and its row says
            why; for CUDA graphs if that is the first clock, else for eager mode. With ``none`` every layer runs by its
            method where it can.
        lost: layers that must not run, since an earlier process did not survive them: their rows fail.
        watch: is called with what is planned, each row, and warnings.

    Raises:
        UsageError: an option is unknown, or the data do not fit the network.
        DeviceLostError: a layer made the GPU unusable; its rows have failed, and what was measured before is stored.
    """
    if select not in get_args(How):
        raise UsageError(f"select {select!r} is unknown: {nearest(str(select), get_args(How))}")
    device = measure.resolve(workload.device)
    for layer in target.resolve(workload.batch[0] if workload.batch else None):
        require_known(layer.layer.method or Method())
    for method in workload.impl:
        require_known(method)
    for name in workload.clocks:
        measure.clock(name, device)
    data = None if workload.data == "synthetic" else load_data(workload.data)
    environment = measure.environment(device)
    more = {} if select == "none" else {"select": select}
    this, done = begin("bench", target, workload, environment, store, command, resume, more)
    meter = measure.Meter(device)
    with closing(store, this.id) as remarks:
        store.add_roofs(this.id, measure.roofs(device, cache))
        measure.settle(device)
        if causes := meter.causes():
            watch(f"the machine is busy: {'; '.join(causes)}: --wait-idle waits until it is not")
        for point in workload.points():
            impl = str(point.method)
            guard = Guard(target.name, impl, device, watch, lost_by(impl, lost))
            rows = _measure(
                target, workload, point, data, device, environment.device, done, watch, select, cache, guard, meter
            )
            try:
                for row in rows:
                    store.add(this.id, row)
                    watch(row)
            except DeviceLostError as error:
                for row in _lost_rows(target, workload, point, environment.device, error):
                    store.add(this.id, row)
                    watch(row)
                raise
        remarks += filter(None, [disturbed(store.layers(this.id))])
    return store.run(this.id)


def _measure(
    target: Target,
    workload: Workload,
    point: Point,
    data: Dataset | None,
    device: torch.device,
    device_name: str,
    done: frozenset[tuple[str | int, ...]],
    watch: Watch,
    select: How,
    cache: Path,
    guard: Guard,
    meter: measure.Meter,
) -> Iterator[LayerRun]:
    """The rows of one point of the grid."""
    batch = point.batch or target.batch
    names = workload.clocks or measure.clocks_for(device)[:1]
    made = {name: measure.clock(name, device) for name in names}
    clocks = [(made[name], l2) for name in names for l2 in (workload.l2 if name != "cpu" else ("-",))]
    repeat = repeat_of(workload)
    with run.precision_mode(point.precision), _stream(clock for clock, _ in clocks):
        network = prepare(target, workload, point, data, device, watch)
        trace, inputs, backward = network.trace, network.inputs, network.backward
        plan = run.memory_plan(trace, backward)
        here = replace(point, batch=batch)
        watch(
            f"{here}: {len(plan.buffers)} tensors share {len(plan.chunks)} buffers of "
            f"{plan.planned_bytes / 2**20:.1f} MiB ({plan.separate_bytes / 2**20:.1f} MiB without sharing)"
        )
        listed = [call.resolved for call in trace.calls if call.resolved.name in network.selected]
        planned = sum(phase in workload.phases for layer in listed for phase in layer.phases)
        watch(Planned(target.name, here, planned * len(clocks)))
        implement = implementation(point)
        selected = None
        if select != "none":
            mode: Mode = "graph" if names[0] == "graph" else "eager"
            watch(f"{here}: selecting an implementation of each layer for {mode} mode")
            selected = select_layers(network, point.method, select, mode, device, cache, guard)
            implement = selected.implement(implement)
        visits = network.visits(target, workload, point, implement, guard, check=workload.check, plan=plan)
        for visit in visits:
            calls, untimed = [], []
            for step in visit:
                row = layer_row(
                    step.resolved,
                    network.places[step.place],
                    step.phase,
                    point,
                    batch,
                    device_name,
                    step.parameters,
                    step.outcome,
                    step.reason,
                    step.rel_error,
                    step.note,
                )
                if step.call is not None:
                    calls.append((row, step.call, partial(_executed, step, row.impl, selected)))
                elif (*row.key, "", "") not in done:
                    untimed.append(row)
            yield from _timed(calls, clocks, done, repeat, device, guard, meter)
            yield from untimed
        if len(network.layers.calls) > 1 and not target.standalone and not workload.layers:
            layers = [call.resolved for call in network.layers.calls]
            if selected is None or point.method.dense:
                whole = convert_network(network.module, network.layers, point.method)
            else:
                whole = selected.whole()
            parameters = whole.parameters if whole.layers else None
            row = network_row(target, layers, workload.phases, point, batch, device_name, parameters)
            call = run.whole_step(whole.module, inputs, network.seed, backward, target.input_gradients)
            if guard.whole_lost:
                yield replace(row, outcome="failed", reason=guard.whole_lost, executed_impl="")
                return
            if not workload.clocks and device.type == "cuda":  # how long the GPU idles in a step
                clocks.append((measure.clock("wall", device), "warm"))
            yield from _timed([(row, call, whole.executed)], clocks, done, repeat, device, guard, meter)


def _lost_rows(
    target: Target, workload: Workload, point: Point, device_name: str, error: DeviceLostError
) -> Iterator[LayerRun]:
    """The failed rows of the layer, or of the whole step, that made the GPU unusable."""
    batch = point.batch or target.batch
    layers = target.resolve(batch)
    for place, layer in enumerate(layers):
        for phase in layer.phases if layer.name == error.layer else ():
            if phase in workload.phases:
                yield layer_row(layer, place, phase, point, batch, device_name, None, "failed", error.reason)
    if error.layer == target.name and not target.standalone:
        row = network_row(target, layers, workload.phases, point, batch, device_name)
        yield replace(row, outcome="failed", reason=error.reason, executed_impl="")


def _executed(step: run.Step, impl: str, selected: Selected | None) -> tuple[str, str]:
    choice = None if selected is None else selected.choices.get(step.place)
    if choice is not None:
        return choice.executed(step.phase.value)
    return executed(step.module, impl, step.phase.value) if step.module is not None else (impl, "")


def _timed(
    calls: Sequence[tuple[LayerRun, Callable[[], object], Callable[[], tuple[str, str]]]],
    clocks: Sequence[tuple[measure.Clock, str]],
    done: frozenset[tuple[str | int, ...]],
    repeat: measure.Repeat,
    device: torch.device,
    guard: Guard,
    meter: measure.Meter,
) -> Iterator[LayerRun]:
    """Rows with their times, by each clock that has none yet; or as failed, where the device gives up on them.

    With each row goes its call, and a function that returns the implementation that ran in the last call, and why.
    """
    reports = {row: report for row, _, report in calls}
    for clock, l2 in clocks:
        todo = {row: call for row, call, _ in calls if (*row.key, clock.name, l2) not in done}
        if not todo:
            continue
        with guard(next(iter(todo)).layer, f"timing by {clock.name}"):
            times = measure.time_each(clock, todo, l2="warm" if l2 == "-" else l2, repeat=repeat)
        state = measure.sample(device)
        for row, time in times.items():
            if isinstance(time, Exception):
                reason = f"{clock.name}: {run.one_line(time)}"
                yield replace(row, outcome="failed", reason=reason, rel_error=None, executed_impl="")
                continue
            with measure.peak_memory(device) as peak:
                todo[row]()
            impl, reason = reports[row]()
            yield replace(
                row,
                executed_impl=impl,
                selection_reason=reason,
                timing=time,
                note=joined(row.note, meter.note(time)),
                peak_bytes=peak.bytes,
                sm_mhz=state.sm_mhz if state else None,
                power_w=state.power_w if state else None,
            )


def _stream(clocks: Iterable[measure.Clock]) -> AbstractContextManager[object]:
    """The stream to work on: backward passes launch where their forward ran, and a graph is captured on its own."""
    streams = [clock.stream for clock in clocks if isinstance(clock, measure.GraphClock)]
    return torch.cuda.stream(streams[0]) if streams else nullcontext()

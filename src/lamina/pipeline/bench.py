"""``bench``: every phase of every layer, checked against float64, timed, and stored as it is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from lamina import measure, run
from lamina.accelerate.select import executed
from lamina.build import Target
from lamina.build.data import Dataset
from lamina.build.data import load as load_data
from lamina.pipeline.converted import convert_network
from lamina.pipeline.prepared import prepare
from lamina.pipeline.rows import layer_row, network_row
from lamina.pipeline.runs import begin, closing
from lamina.pipeline.targets import implementation, require_known
from lamina.pipeline.watch import Planned, Watch, unwatched
from lamina.record import LayerRun, Run
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
    watch: Watch = unwatched,
) -> Run:
    """Measure every phase of every layer at every point of the workload; each row is stored as it is measured.

    Args:
        target: the network.
        workload: the grid of ways to run it.
        store: where rows go.
        cache: folder of the machine's measured peaks.
        command: the command line, for provenance.
        resume: complete the last unfinished run of the same work instead of starting anew.
        watch: is called with what is planned, each row, and warnings.
    """
    device = measure.resolve(workload.device)
    for layer in target.resolve(workload.batch[0] if workload.batch else None):
        require_known(layer.layer.method or Method())
    for method in workload.impl:
        require_known(method)
    for name in workload.clocks:
        measure.clock(name, device)
    data = None if workload.data == "synthetic" else load_data(workload.data)
    environment = measure.environment(device)
    this, done = begin("bench", target, workload, environment, store, command, resume)
    with closing(store, this.id):
        store.add_roofs(this.id, measure.roofs(device, cache))
        measure.settle(device)
        for point in workload.points():
            for row in _measure(target, workload, point, data, device, environment.device, done, watch):
                store.add(this.id, row)
                watch(row)
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
) -> Iterator[LayerRun]:
    """The rows of one point of the grid."""
    batch = point.batch or target.batch
    names = workload.clocks or measure.clocks_for(device)[:1]
    made = {name: measure.clock(name, device) for name in names}
    clocks = [(made[name], l2) for name in names for l2 in (workload.l2 if name != "cpu" else ("-",))]
    repeat = _repeat(workload)
    with run.precision_mode(point.precision), _stream(clock for clock, _ in clocks):
        network = prepare(target, workload, point, data, device, watch)
        trace, inputs, backward = network.trace, network.inputs, network.backward
        plan = run.memory_plan(trace, backward)
        here = replace(point, batch=batch)
        watch(
            f"{here}: {len(plan.chunks)} chunks of memory hold {len(plan.buffers)} tensors, "
            f"{plan.planned_bytes / 2**20:.1f} MiB for {plan.separate_bytes / 2**20:.1f} MiB"
        )
        planned = sum(phase in workload.phases for call in trace.calls for phase in call.resolved.phases)
        watch(Planned(target.name, here, planned * len(clocks)))
        visits = run.walk(
            trace,
            inputs,
            phases=workload.phases,
            precision=point.precision,
            seed_gradient=network.seed,
            input_gradients=target.input_gradients,
            implement=implementation(point),
            check=workload.check,
            plan=plan,
        )
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
                )
                if step.call is not None:
                    calls.append((row, step.call, partial(_executed, step, row.impl)))
                elif (*row.key, "", "") not in done:
                    untimed.append(row)
            yield from _timed(calls, clocks, done, repeat, device)
            yield from untimed
        if len(network.layers.calls) > 1 and not target.standalone:
            layers = [call.resolved for call in network.layers.calls]
            whole = convert_network(network.module, network.layers, point.method)
            parameters = None if point.method == Method() else whole.parameters
            row = network_row(target, layers, workload.phases, point, batch, device_name, parameters)
            call = run.whole_step(whole.module, inputs, network.seed, backward, target.input_gradients)
            yield from _timed([(row, call, whole.executed)], clocks, done, repeat, device)


def _executed(step: run.Step, impl: str) -> tuple[str, str]:
    return executed(step.module, impl, step.phase.value) if step.module is not None else (impl, "")


def _timed(
    calls: Sequence[tuple[LayerRun, Callable[[], object], Callable[[], tuple[str, str]]]],
    clocks: Sequence[tuple[measure.Clock, str]],
    done: frozenset[tuple[str | int, ...]],
    repeat: measure.Repeat,
    device: torch.device,
) -> Iterator[LayerRun]:
    """Rows with their times, by each clock that has none yet; or as failed, where the device gives up on them.

    With each row goes its call, and a function that returns the implementation that ran in the last call, and why.
    """
    reports = {row: report for row, _, report in calls}
    for clock, l2 in clocks:
        todo = {row: call for row, call, _ in calls if (*row.key, clock.name, l2) not in done}
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
                peak_bytes=peak.bytes,
                sm_mhz=state.sm_mhz if state else None,
                power_w=state.power_w if state else None,
            )


def _stream(clocks: Iterable[measure.Clock]) -> AbstractContextManager[object]:
    """The stream to work on: backward passes launch where their forward ran, and a graph is captured on its own."""
    streams = [clock.stream for clock in clocks if isinstance(clock, measure.GraphClock)]
    return torch.cuda.stream(streams[0]) if streams else nullcontext()


def _repeat(workload: Workload) -> measure.Repeat:
    if workload.repeat is not None:
        return measure.Repeat(workload.repeat, workload.repeat, min_time_s=0, max_time_s=float("inf"))
    return measure.Repeat(min_time_s=min(0.1, workload.seconds), max_time_s=workload.seconds)

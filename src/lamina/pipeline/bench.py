"""``bench``: every phase of every layer, checked against float64, timed, and stored as it is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from lamina import build, measure, run
from lamina.build import Target
from lamina.build.data import Dataset
from lamina.build.data import load as load_data
from lamina.pipeline.runs import begin, closing
from lamina.pipeline.targets import implementation, require_installed
from lamina.pipeline.watch import Planned, Watch, unwatched
from lamina.record import LayerRun, Run
from lamina.spec import ITEM_BYTES, Method, Phase, Point, ResolvedLayer, Workload
from lamina.store import Store

WHOLE_STEP = "step"
"""The phase of the row that holds a whole network's training step, timed at once."""


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
        cache: folder of the machine's measured roofs.
        command: the command line, for provenance.
        resume: complete the last unfinished run of the same work instead of starting anew.
        watch: is told what is planned, each row, and remarks.
    """
    device = measure.resolve(workload.device)
    for layer in target.resolve(workload.batch[0] if workload.batch else None):
        require_installed(layer.layer.method or Method())
    for method in workload.impl:
        require_installed(method)
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
    done: frozenset[tuple[str, ...]],
    watch: Watch,
) -> Iterator[LayerRun]:
    """The rows of one point of the grid."""
    batch = point.batch or target.batch
    names = workload.clocks or measure.clocks_for(device)[:1]
    made = {name: measure.clock(name, device) for name in names}
    clocks = [(made[name], l2) for name in names for l2 in (workload.l2 if name != "cpu" else ("-",))]
    repeat = _repeat(workload)
    blank = partial(
        LayerRun,
        precision=point.precision,
        layout=point.layout,
        batch=batch,
        device=device_name,
    )

    torch.manual_seed(workload.seed)
    with run.precision_mode(point.precision), _stream(clock for clock, _ in clocks):
        module = build.to_precision(target.make(None).train(), point.precision, device, point.layout)
        inputs, labels, remarks = target.example(batch, data, point.precision, device, point.layout, workload.seed)
        for remark in remarks:
            watch(remark)
        trace = build.trace(module, *inputs)
        backward = any(phase is not Phase.FORWARD for phase in workload.phases)
        plan = run.memory_plan(trace, backward)
        watch(
            f"{point}: {len(plan.chunks)} chunks of memory hold {len(plan.buffers)} tensors, "
            f"{plan.planned_bytes / 2**20:.1f} MiB for {plan.separate_bytes / 2**20:.1f} MiB"
        )
        seed = run.seed_gradient(labels, workload.seed)
        phases = [(layer, phase) for layer in trace.layers for phase in layer.phases if phase in workload.phases]
        watch(Planned(target.name, point, len(phases) * len(clocks)))
        visits = run.walk(
            trace,
            inputs,
            phases=workload.phases,
            precision=point.precision,
            seed_gradient=seed,
            input_gradients=target.input_gradients,
            implement=implementation(point),
            check=workload.check,
            plan=plan,
        )
        for visit in visits:
            calls = []
            for step in visit:
                row = _row(blank, step, point)
                if step.call is not None:
                    calls.append((row, step.call))
                elif (*row.key, "", "") not in done:
                    yield row
            yield from _timed(calls, clocks, done, repeat, device)
        if len(trace.calls) > 1 and not target.standalone and point.method == Method():
            row = _whole_row(blank, target, trace.layers, workload.phases, ITEM_BYTES[point.precision])
            call = run.whole_step(module, inputs, seed, backward, target.input_gradients)
            yield from _timed([(row, call)], clocks, done, repeat, device)


def _timed(
    calls: Sequence[tuple[LayerRun, Callable[[], object]]],
    clocks: Sequence[tuple[measure.Clock, str]],
    done: frozenset[tuple[str, ...]],
    repeat: measure.Repeat,
    device: torch.device,
) -> Iterator[LayerRun]:
    """Rows with their times, by each clock that has none yet; or as failed, where the device gives up on them."""
    for clock, l2 in clocks:
        todo = {row: call for row, call in calls if (*row.key, clock.name, l2) not in done}
        times = measure.time_each(clock, todo, l2="warm" if l2 == "-" else l2, repeat=repeat)
        state = measure.sample(device)
        for row, time in times.items():
            if isinstance(time, Exception):
                yield replace(row, outcome="failed", reason=f"{clock.name}: {run.one_line(time)}", rel_error=None)
                continue
            with measure.peak_memory(device) as peak:
                todo[row]()
            yield replace(
                row,
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


def _row(blank: Callable[..., LayerRun], step: run.Step, point: Point) -> LayerRun:
    layer, method = step.resolved, step.resolved.layer.method or point.method
    cost = layer.cost(step.phase, ITEM_BYTES[point.precision])
    known = method.dense  # a method that changes the layer changes its work, which the dense closed form does not tell
    return blank(
        layer=layer.name,
        kind=layer.layer.kind if layer.layer.counted else getattr(layer.layer, "operation", layer.layer.kind),
        place=step.place,
        phase=step.phase.value,
        impl=str(method),
        inputs=layer.inputs,
        output=layer.output,
        parameters=step.parameters,
        flops=cost.flops if known and layer.layer.counted else None,
        bytes=cost.bytes if known else None,
        outcome=step.outcome,
        reason=step.reason,
        rel_error=step.rel_error,
    )


def _whole_row(
    blank: Callable[..., LayerRun],
    target: Target,
    layers: Sequence[ResolvedLayer],
    phases: Sequence[Phase],
    itemsize: int,
) -> LayerRun:
    counted = all(layer.layer.counted or not layer.phases for layer in layers)
    flops = sum(layer.cost(phase, itemsize).flops for layer in layers for phase in layer.phases if phase in phases)
    return blank(
        layer=target.name,
        kind="network",
        place=len(layers),
        phase=WHOLE_STEP,
        impl=str(Method()),
        inputs=(layers[0].inputs[0],) if layers[0].inputs else (),
        output=layers[-1].output,
        parameters=sum(layer.parameters for layer in layers),
        flops=flops if counted else None,
        bytes=None,
        outcome="ok",
    )

"""``profile``: one iteration of a network, every kernel and hardware counter tied to its layer and phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import MappingProxyType

import torch

from lamina import measure, run
from lamina.build import Target
from lamina.build.data import load as load_data
from lamina.pipeline.guard import Guard, Lost, lost_by, require_device
from lamina.pipeline.prepared import Prepared, prepare
from lamina.pipeline.profile.counted import TIMEOUT_S, Replay, count, range_name
from lamina.pipeline.profile.point import DEFAULT, Options, iteration_of, profile_point, warm_up
from lamina.pipeline.runs import begin, closing
from lamina.pipeline.targets import require_known
from lamina.pipeline.watch import Watch, unwatched
from lamina.record import Coverage, Run
from lamina.record.noise import disturbed
from lamina.spec import Phase, Point, Workload
from lamina.store import Store


def profile(
    target: Target,
    workload: Workload,
    store: Store,
    *,
    cache: Path,
    options: Options = DEFAULT,
    counters: Sequence[str] = (),
    counters_limit_s: Callable[[], float] = lambda: TIMEOUT_S,
    replay: Replay | None = None,
    command: str = "",
    resume: bool = False,
    lost: Lost = MappingProxyType({}),
    watch: Watch = unwatched,
) -> Run:
    """Profile a network at every point of the workload; a point is stored as soon as it is measured.

    Times come from an iteration without counters. Counters come from a second process that runs the same
    iteration under Nsight Compute, and are kept where both ran the same kernels.

    Args:
        target: the network.
        workload: the grid; without backward phases it means inference.
        store: where everything goes.
        cache: folder of the machine's measured peaks.
        options: how the iteration runs.
        counters: metrics for Nsight Compute to read; none for times only.
        counters_limit_s: is asked, before those of a point are read, how many seconds that may take.
        replay: from a point to the command line that runs :func:`iterate` there; needed for counters.
        command: the command line, for provenance.
        resume: complete the last unfinished run of the same work instead of starting anew.
        lost: layers that must not run, since an earlier process did not survive them: their rows fail, and there are no
            counters.
        watch: is called with what is planned, each row, and warnings.

    Raises:
        DeviceLostError: a layer made the GPU unusable; the points before this one are stored.
    """
    device = measure.resolve(workload.device)
    for method in workload.impl:
        require_known(method)
    data = None if workload.data == "synthetic" else load_data(workload.data)
    environment = measure.environment(device)
    this, done = begin("profile", target, workload, environment, store, command, resume, asdict(options))
    with closing(store, this.id) as remarks:
        if not store.roofs(this.id):
            store.add_roofs(this.id, measure.roofs(device, cache))
        measure.settle(device)
        known = {key[2:6] for key in done}
        for point in workload.points():
            if (str(point.method), point.precision, point.layout, point.batch or target.batch) in known:
                continue
            impl = str(point.method)
            guard = Guard(target.name, impl, device, watch, lost_by(impl, lost))
            found = profile_point(target, workload, point, options, data, device, environment.device, watch, guard)
            store.add_profile(this.id, found.rows, found.kernels, found.coverage)
            for row in found.rows:
                watch(row)
            if found.coverage:
                watch(covered(point, found.coverage))
            require_device(device, target.name)
        remarks += filter(None, [disturbed(store.layers(this.id))])
        if counters and lost:
            remarks.append(f"no hardware counters: {', '.join(layer for layer, _ in lost)} must not run")
        elif counters and replay is not None:
            remarks += count(
                target, workload, store, this.id, counters, replay, watch, options.detail_batch, counters_limit_s
            )
    return store.run(this.id)


def iterate(target: Target, workload: Workload, options: Options = DEFAULT, watch: Watch = unwatched) -> None:
    """Run the iteration of a workload's first point once more, each phase in a range that Nsight Compute sees."""
    device = measure.resolve(workload.device)
    data = None if workload.data == "synthetic" else load_data(workload.data)
    point = next(workload.points())
    with run.precision_mode(point.precision, options.autotune):
        network = prepare(target, workload, point, data, device, unwatched, options.training)
        iteration = iteration_of(target, point, network)
        warm_up(iteration)
        mark = partial(_named_range, network, watch)
        if workload.layers:
            iteration.run(partial(_captured, network, device, mark))
            return
        with measure.profiler_capture(device):
            iteration.run(mark)


@contextmanager
def _captured(network: Prepared, device: torch.device, mark: run.Mark, index: int, phase: Phase) -> Iterator[None]:
    """The phase of a selected layer, for the profiler to see; that of another, unseen."""
    if network.trace.calls[index].resolved.name not in network.selected:
        yield
        return
    with measure.profiler_capture(device), mark(index, phase):
        yield


@contextmanager
def _named_range(network: Prepared, watch: Watch, index: int, phase: Phase) -> Iterator[None]:
    calls = network.trace.calls
    watch(f"layer {index + 1} of {len(calls)}: {calls[index].resolved.name} {phase.value}")
    with measure.nvtx_range(range_name(network.places[index], phase)):
        yield


def covered(point: Point, coverage: Coverage) -> str:
    """How complete a profile is, with the kernels that are not attributed."""
    strays = sorted(coverage.strays.items(), key=lambda stray: -stray[1])
    listed = "".join(f"\n  not attributed: {name}, {us:.1f} µs" for name, us in strays)
    return (
        f"{point}: {coverage.kernels} kernels, copies and fills have a layer and a phase, "
        f"{coverage.share:.2%} of {coverage.attributed_us + sum(coverage.strays.values()):.0f} µs on the device{listed}"
    )

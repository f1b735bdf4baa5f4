"""``what-if``: changes that should help, predicted from records, executed, and stored side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from lamina import measure, run
from lamina.build import Target
from lamina.build.data import load as load_data
from lamina.errors import DeviceLostError, UsageError, nearest
from lamina.pipeline import watch as watching
from lamina.pipeline.guard import Guard, Lost, lost_by, require_device
from lamina.pipeline.prepared import prepare
from lamina.pipeline.profile.point import Options, profile_point
from lamina.pipeline.rows import WHOLE_STEP
from lamina.pipeline.runs import begin, closing
from lamina.pipeline.targets import require_known
from lamina.pipeline.watch import Watch, unwatched
from lamina.pipeline.what_if import changes as moves
from lamina.pipeline.what_if import fusions, implementations
from lamina.pipeline.what_if.stage import Baseline, Elsewhere, Stage, mark
from lamina.record import Run, WhatIf
from lamina.record.noise import disturbed
from lamina.spec import Method, Point, Workload
from lamina.store import Store

Change = Callable[[Stage], Iterator[WhatIf]]

CHANGES: Mapping[str, Change] = {
    "fusion": fusions.fusion,
    "without_activations": fusions.without_activations,
    "l1_bypass": fusions.l1_bypass,
    "channels_last": moves.channels_last,
    "precision": moves.precision,
    "cuda_graph": moves.cuda_graph,
    "algorithm": moves.algorithm,
}

TUNED = Options(autotune=True)
"""Where nothing was profiled before, the library may choose its fastest algorithms: the strongest baseline."""


def what_if(
    target: Target,
    workload: Workload,
    store: Store,
    *,
    cache: Path,
    changes: Sequence[str] = tuple(CHANGES),
    impls: Sequence[Method] = (),
    profile: str = "",
    options: Options = TUNED,
    elsewhere: Elsewhere | None = None,
    command: str = "",
    resume: bool = False,
    lost: Lost = MappingProxyType({}),
    watch: Watch = unwatched,
) -> Run:
    """Execute changes of a network, part by part and of its whole step, beside what records predicted.

    A change that cannot be executed is stored with its reason, and the others go on. Results are compared with
    float64 before they are timed, where the workload asks for it.

    Args:
        target: the network.
        workload: the points to change, each computed densely, and patterns of the layers to change.
        store: where everything goes, as soon as it is measured.
        cache: folder of the machine's measured peaks.
        changes: which of `CHANGES`.
        impls: implementations to run the layers by, such as ``circulant[block_size=64]``.
        profile: a stored run of `profile` to predict from; points that it lacks are profiled here first.
        options: how the network runs, where no profile says it.
        elsewhere: the command line of a process that profiles a point otherwise; without it, what needs one is refused.
        command: the command line, for provenance.
        resume: complete the last unfinished run of the same work instead of starting anew.
        lost: layers, and changes of them, that must not run, since an earlier process did not survive them.
        watch: is called with each row of the baseline, each what-if in words, and warnings.

    Raises:
        UsageError: no such change, no profile of this network by that name, or a method that is not dense.
        UnsupportedError: the network itself does not run.
        DeviceLostError: a change made the GPU unusable; what was measured before is stored.
    """
    for name in changes:
        if name not in CHANGES:
            raise UsageError(f"change {name!r} is unknown: {nearest(name, CHANGES)}")
    if any(method != Method() for method in workload.impl):
        raise UsageError(f"what-if changes dense networks, got {', '.join(map(str, workload.impl))}")
    for method in impls:
        require_known(method)
        if method == Method():
            raise UsageError("dense is what the network is: expected another implementation, such as circulant")
    if target.standalone:
        raise UsageError(f"what-if changes a network, {target.name} is a list of separate layers")
    device = measure.resolve(workload.device)
    earlier = _profile_of(target, store, profile) if profile else None
    if earlier:
        options = Options(**{name: earlier.config.get(name, default) for name, default in asdict(Options()).items()})
    data = None if workload.data == "synthetic" else load_data(workload.data)
    environment = measure.environment(device)
    more = asdict(options) | {"changes": list(changes), "profile": earlier.id if earlier else ""}
    more |= {"impls": [str(method) for method in impls]} if impls else {}
    steps: list[tuple[str, str, Change]] = [(name, name, CHANGES[name]) for name in changes]
    steps += [("impl", f"dense -> {method}", partial(implementations.by_method, method=method)) for method in impls]
    everything = workload.model_copy(update={"layers": ()})
    this, _ = begin("what-if", target, workload, environment, store, command, resume, more)
    with closing(store, this.id) as remarks:
        if not store.roofs(this.id):
            store.add_roofs(this.id, measure.roofs(device, cache))
        measure.settle(device)
        for point in workload.points():
            base = _stored(store, earlier or this, this, point, target)
            if not base.rows:
                impl = str(point.method)
                guard = Guard(target.name, impl, device, watch, lost_by(impl, lost))
                found = profile_point(
                    target, everything, point, options, data, device, environment.device, watch, guard
                )
                base = Baseline(found.rows, found.kernels, (), store.roofs(this.id)[0])
                store.add_profile(this.id, found.rows, found.kernels, found.coverage)
            elif not _stored(store, this, this, point, target).rows:
                store.add_profile(this.id, base.rows, base.kernels, None)
            for row in base.rows:
                watch(row)
            done = {mark(one): one for one in store.what_ifs(this.id)}
            with run.precision_mode(point.precision, options.autotune):
                network = prepare(target, workload, point, data, device, watch, options.training)
                stage = Stage(
                    target, everything, point, options, data, device, environment.device, network, base, done,
                    elsewhere, lost, watch,
                )  # fmt: skip
                assert stage.whole.timing
                title = f"{target.name}: changes at {replace(point, batch=network.batch)}"
                for place, (name, detail, change) in enumerate(steps):

                    def progress(done: float, place: int = place, title: str = title) -> None:
                        watch(watching.Stage(title, place + done, len(steps)))

                    progress(0)
                    _execute(replace(stage, progress=progress), name, detail, change, store, this.id, watch)
                    require_device(device, detail)
        if noise := disturbed(store.layers(this.id)):
            watch(noise)
            remarks.append(noise)
    return store.run(this.id)


def _execute(stage: Stage, name: str, detail: str, change: Change, store: Store, run_id: str, watch: Watch) -> None:
    """Store what a change gives as it is measured; where it breaks altogether, its reason."""
    try:
        for one in change(stage):
            if mark(one) not in stage.done:
                store.add_what_if(run_id, one)
                watch(watching.Changed(said(one), one.layer == stage.whole.layer))
    except DeviceLostError:
        raise
    except Exception as error:
        broken = stage.refused(name, detail, run.one_line(error))
        if mark(broken) not in stage.done:
            store.add_what_if(run_id, broken)
        watch(watching.Changed(said(broken), True))


def said(one: WhatIf) -> str:
    """A what-if in words."""
    subject = f"{one.change}: {one.layer} {one.phase}, {one.detail}"
    if one.after is None:
        return f"{subject}: {one.reason}"
    measured = "" if one.measured_gain is None else f", {one.measured_gain:+.1%}"
    predicted = "" if one.predicted_gain is None else f", predicted {one.predicted_gain:+.1%}"
    return f"{subject}: {one.before.median_us:.1f} -> {one.after.median_us:.1f} us{measured}{predicted}"


def _profile_of(target: Target, store: Store, name: str) -> Run:
    found = store.run(name)
    if found.verb not in ("profile", "what-if") or found.target != target.name:
        raise UsageError(
            f"run {found.id}: expected a profile of {target.name}, got {found.verb} of {found.target}; "
            f"make one with 'lamina profile {target.name}'"
        )
    return found


def _stored(store: Store, source: Run, roofs_of: Run, point: Point, target: Target) -> Baseline:
    """What a run has of a point; nothing where the whole step has no time."""
    asked = (str(point.method), point.precision, point.layout, point.batch or target.batch)
    rows = tuple(row for row in store.layers(source.id) if row.key[2:6] == asked)
    if not any(row.phase == WHOLE_STEP and row.timing for row in rows):
        rows = ()
    keys = {row.key for row in rows}
    kernels = tuple(one for one in store.kernels(source.id) if one.key in keys)
    counters = tuple(one for one in store.counters(source.id) if one.key in keys)
    return Baseline(rows, kernels, counters, next(iter(store.roofs(roofs_of.id)), None))

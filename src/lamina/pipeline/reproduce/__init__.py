"""``reproduce``: a table or figure of a paper, with its published values and statements beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lamina.errors import MissingError, UsageError
from lamina.pipeline.bench import bench
from lamina.pipeline.explain import look_up
from lamina.pipeline.profile import profile
from lamina.pipeline.profile.counted import Replay, metrics
from lamina.pipeline.reproduce.measured import measurement
from lamina.pipeline.reproduce.measured.judging import Scope, judge
from lamina.pipeline.reproduce.sample import Sample
from lamina.pipeline.reproduce.simulated import Simulating, reproduce_simulated
from lamina.pipeline.reproduce.stored import as_value, checked, from_recorded
from lamina.pipeline.rows import WHOLE_STEP
from lamina.pipeline.targets import find
from lamina.pipeline.watch import Watch, unwatched
from lamina.pipeline.what_if import what_if
from lamina.pipeline.what_if.bypass import CHANGE as BYPASS
from lamina.record import Run, WhatIf
from lamina.record.beside import Beside
from lamina.spec import Phase, ResolvedLayer, Workload, show
from lamina.spec.published import SCALES, Published, PublishedValue
from lamina.store import Store


@dataclass(frozen=True)
class Reproduced:
    """A table or figure with our values; ``run`` has the measurements, if any were needed.

    For simulations, the entry's note includes the settings of all points. ``source`` says where our values are from:
    a device, a date and a commit if they are recorded.
    """

    entry: Published
    rows: tuple[Beside, ...]
    run: Run | None
    source: str = ""


def reproduce(
    entry: Published,
    workload: Workload,
    store: Store | None,
    cache: Path,
    *,
    run_id: str = "",
    against: str = "",
    replay: Replay | None = None,
    simulating: Simulating | None = None,
    command: str = "",
    resume: bool = False,
    watch: Watch = unwatched,
) -> Reproduced:
    """Compute, measure or simulate the values of an entry.

    Entries with ``counts`` need no store and run nothing. For entries with ``figures``, the recipe is profiled; for
    those with ``changes``, they are executed; for those with ``simulates``, the points are simulated. For the others,
    every layer of the recipe is measured as ``workload`` specifies.

    Args:
        entry: the published results.
        workload: the points to measure.
        store: the store for measurements.
        cache: folder of the machine's measured peaks.
        run_id: a stored run to use instead of measuring, of any network, device and batch size.
        against: a second run, for figures that compare two.
        replay: for counters, as `profile` takes it.
        simulating: how points are simulated, by default in this process.
        command: the command line, for provenance.
        resume: complete the last unfinished run of the same measurements instead of starting a new one.
        watch: called with progress events.

    Raises:
        UsageError: the entry has to measure and no store was given, or the stored run is of another verb.
    """
    if entry.not_applicable:
        shown = (*entry.values, *map(as_value, entry.statements))
        return Reproduced(entry, tuple(Beside(value, "not applicable", None) for value in shown), None)
    if entry.measures:
        raise UsageError(f"{entry.id} is measured as a whole: expected reproduce_measured")
    if entry.simulates is not None:
        if run_id or against:
            raise UsageError(f"{entry.id} is simulated: stored results are reused without --run")
        how = simulating or Simulating()
        rows, run = reproduce_simulated(entry, entry.simulates, store, how, command)
        shared = "" if entry.counts else entry.simulates.description(how.settings)
        return Reproduced(entry.model_copy(update={"note": f"{entry.note} {shared}".strip()}), rows, run)
    target, _ = find(entry.recipe)
    rows = _beside(entry, target.resolve(workload.batch[0] if workload.batch else None)) if not entry.changes else ()
    if entry.counts:
        return Reproduced(entry, rows, None, "counted")
    if store is None:
        raise UsageError(f"{entry.id} must be measured: expected a store, got none")
    if entry.changes:
        run = store.run(run_id) if run_id else what_if(
            target, workload, store, cache=cache, changes=entry.changes,
            command=command, resume=resume, watch=watch,
        )  # fmt: skip
        found = store.what_ifs(run.id)
        return Reproduced(entry, tuple(_gained(value, found) for value in entry.values), run)
    if entry.figures:
        run = store.run(run_id) if run_id else profile(
            target, workload, store, cache=cache, counters=metrics(entry.counters or ("none",)), replay=replay,
            command=command, resume=resume, watch=watch,
        )  # fmt: skip
        sample = Sample(look_up(store, run.id), look_up(store, against) if against else None)
        return Reproduced(entry, (*rows, *(checked(it, sample, bool(entry.counters)) for it in entry.statements)), run)
    if run_id:
        raise UsageError(f"{entry.id} is a table to be measured: --run is for figures")
    run = bench(target, workload, store, cache=cache, command=command, resume=resume, watch=watch)
    return Reproduced(entry, rows, run)


def reproduce_recorded(entry: Published) -> Reproduced:
    """An entry from rows, profiles and simulations that the package ships, or counted; nothing is measured.

    Raises:
        UsageError: the package ships nothing for the entry.
    """
    if entry.not_applicable:
        return reproduce(entry, entry.workload, None, Path())
    if entry.counts and not entry.measures:
        return replace(reproduce(entry, entry.workload, None, Path()), source="counted")
    if entry.measures and (counts := measurement(entry.measures)).run is not None and not counts.recorded:
        source = "measured on cpu, quick" if counts.command else "counted"
        return Reproduced(entry, judge(entry, counts, counts.run(Scope("cpu"))), None, source)
    if entry.configuration:
        target, _ = find(entry.recipe)
        return Reproduced(entry, _beside(entry, target.resolve(None)), None, "counted")
    rows, source = from_recorded(entry)
    return Reproduced(entry, rows, None, source)


def reproduce_measured(entry: Published, device: str, quick: bool) -> Reproduced:
    """Measure an entry that ``measures`` on a device; ``quick``: small enough for a few minutes on a CPU.

    Raises:
        UsageError: the measurement is not one that this process can run; the message has the command that does.
        MissingError: it needs a GPU.
    """
    known = measurement(entry.measures)
    if known.run is None or (known.needs_gpu and device == "cpu"):
        needs = "needs a GPU" if known.needs_gpu else "is not run by this command"
        raise MissingError(f"{entry.id} {needs} ({known.command} measures it in full)")
    rows = known.run(Scope(device, quick))
    how = "counted" if not known.command else f"measured on {device}{', quick' if quick else ''}"
    return Reproduced(entry, judge(entry, known, rows), None, how)


def _gained(value: PublishedValue, found: Sequence[WhatIf]) -> Beside:
    """The largest gain of a change in the time of the whole step; of L1 bypass, of a convolution's weight gradient."""
    wanted = Phase.BACKWARD_WEIGHT.value if value.quantity == BYPASS else WHOLE_STEP
    gains = [
        (one.measured_gain, one)
        for one in found
        if one.change == value.quantity and one.measured_gain is not None and one.phase == wanted
    ]
    if not gains:
        reason = next((one.reason for one in found if one.change == value.quantity and one.reason), "not executed")
        return Beside(value, reason, None)
    gain, best = max(gains, key=lambda pair: pair[0])
    return Beside(value, f"{gain:.1%} ({best.layer}, {best.precision})", 100 * gain >= float(value.value), 100 * gain)


def _beside(entry: Published, layers: Sequence[ResolvedLayer]) -> tuple[Beside, ...]:
    named = {layer.name: layer for layer in layers}
    return tuple(_compare(value, named) for value in entry.values)


def _compare(value: PublishedValue, layers: Mapping[str, ResolvedLayer]) -> Beside:
    if value.layer not in layers:
        raise UsageError(f"published layer {value.layer!r} is not in the recipe, which has {', '.join(layers)}")
    layer = layers[value.layer]
    match value.quantity:
        case "operations":
            count = layer.cost(Phase.FORWARD).flops
            ours = count / SCALES.get(value.unit, 1)
            return Beside(value, f"{ours:.4g}", value.agrees(count), ours)
        case "input":
            shape = show(layer.inputs[0])
            return Beside(value, shape, shape == value.value)
        case other:
            raise UsageError(f"{value.layer}: no rule computes the quantity {other!r}")

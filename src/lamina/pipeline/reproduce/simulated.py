"""``reproduce`` of what a paper simulated: its settings, values and statements beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from lamina.errors import UsageError
from lamina.pipeline.reproduce.networks import NETWORKS, mean_speedup, network_speedups
from lamina.pipeline.reproduce.points import HIT_RATE, SPEEDUP, Pair, formatted, quantity
from lamina.pipeline.reproduce.settings import configured
from lamina.pipeline.reproduce.simulated_statements import check
from lamina.pipeline.reproduce.statements import STATEMENT
from lamina.pipeline.reproduce.training import SHARE, TRAINING, training
from lamina.pipeline.simulate import Planner, Watch, simulate
from lamina.record import Run
from lamina.record.beside import Beside
from lamina.simulate.engines import Engine, Here
from lamina.simulate.jobs import Job
from lamina.spec.points import Points, Settings, SimulationPoint
from lamina.spec.published import Published, PublishedStatement, PublishedValue
from lamina.store import Store

DRAWN = "drawn only"
"""The value of a bar whose number is not printed."""


@dataclass(frozen=True)
class Simulating:
    """How points are simulated. ``settings`` are the last word on every point, such as ``{"batch": 4}``."""

    engine: Engine = field(default_factory=Here)
    settings: Settings = field(default_factory=dict)
    watch: Watch | None = None
    resume: bool = False
    fresh: bool = False


@dataclass(frozen=True)
class Planned:
    """A point with the jobs of its layer and of its baseline."""

    point: SimulationPoint
    ours: Job
    baseline: Job


def plan(entry: Published, points: Points, changes: Settings) -> tuple[Planned, ...]:
    """The jobs of the points of an entry.

    Raises:
        UsageError, SpecError: a setting is invalid, or a point does not have exactly one layer.
    """
    planner, found = Planner(), []
    for point in points.points(entry.recipe, changes):
        ours, baseline = planner.jobs(point.settings, entry.id), planner.jobs(point.baseline, entry.id)
        if len(ours) != 1:
            raise UsageError(f"{entry.id}: {point.title}: expected one layer, got {len(ours)}: set 'layer'")
        found.append(Planned(point, ours[0], baseline[0]))
    return tuple(found)


def reproduce_simulated(
    entry: Published, points: Points, store: Store | None, how: Simulating, command: str = ""
) -> tuple[tuple[Beside, ...], Run | None]:
    """The rows of an entry and the run of its simulations. An entry with ``counts`` has settings only.

    Raises:
        UsageError: points must be simulated and no store was given, or an entry has an unknown quantity.
    """
    planned = plan(entry, points, how.settings)
    if entry.counts:
        return tuple(configured(it, [each.ours for each in _of(it, planned)]) for it in entry.values), None
    if store is None:
        raise UsageError(f"{entry.id} must be simulated: expected a store, got none")
    done = simulate(
        list({job.key: job for each in planned for job in (each.baseline, each.ours)}.values()),
        store,
        how.engine,
        target=entry.id,
        config={"entry": entry.id, "settings": dict(how.settings)},
        command=command,
        resume=how.resume,
        fresh=how.fresh,
        watch=how.watch,
    )
    by_key = {result.job.key: result for result in done.results}
    pairs = [Pair.of(each.point, by_key[each.ours.key], by_key[each.baseline.key]) for each in planned]
    return judged(entry, points, pairs), done.run


def judged(entry: Published, points: Points, pairs: Sequence[Pair]) -> tuple[Beside, ...]:
    """The rows of an entry from the results of its points."""
    return (
        *(_value(entry, it, pairs) for it in entry.values),
        *(_drawn(name, pair) for name in points.shows for pair in pairs),
        *(_statement(it, pairs) for it in entry.statements),
    )


def recorded_pairs(entry: Published, points: Points, rows: Iterable[Mapping[str, Any]]) -> list[Pair]:
    """The pairs of an entry's points, from recorded rows with ``entry`` and ``point``."""
    known = {row["point"]: row for row in rows if row["entry"] == entry.id}
    return [Pair.recorded(point, known.get(point.title)) for point in points.points(entry.recipe)]


def _of(value: PublishedValue, planned: Iterable[Planned]) -> list[Planned]:
    found = [each for each in planned if each.point.matches(value.layer, value.where)]
    if not found:
        raise UsageError(f"published row {value.layer!r} matches no point")
    return found


def _value(entry: Published, value: PublishedValue, pairs: Sequence[Pair]) -> Beside:
    """A printed value beside our mean over the layers of its points."""
    own = [pair for pair in pairs if pair.point.matches(value.layer, value.where)]
    if not own:
        return Beside(value, "not among the simulated points", None)
    if value.quantity == SHARE:
        return Beside(value, "used as printed", None)
    if missing := [pair for pair in own if pair.reason]:
        return Beside(value, f"{missing[0].point.title}: {missing[0].reason}", None)
    if value.quantity == TRAINING:
        ours = training(entry, value, own)
        return Beside(value, formatted(SPEEDUP, ours), value.agrees(ours), ours)
    if value.quantity == NETWORKS:
        gains = network_speedups(own)
        ours, parts = mean_speedup(gains), ", ".join(f"{name} {gain:.3g}" for name, (gain, _) in gains.items())
        return Beside(value, f"{formatted(SPEEDUP, ours)} ({parts})", value.agrees(ours), ours)
    found = [each for pair in own for each in [quantity(value.quantity, pair)] * pair.point.times if each is not None]
    if not found:
        return Beside(value, "not counted", None)
    ours = mean(found)
    ends = f", {min(found):.3g} to {max(found):.3g}" if len(found) > 1 else ""
    return Beside(value, f"{formatted(value.quantity, ours)}{ends}", value.agrees(ours), ours)


def _drawn(name: str, pair: Pair) -> Beside:
    """A bar of the figure; only ours has a value."""
    value = PublishedValue(layer=pair.point.title, quantity=name, value=DRAWN)
    found = quantity(name, pair)
    if found is None:
        return Beside(value, pair.reason or "not counted", None)
    more = ""
    if name == SPEEDUP and pair.uncertainty:
        more = f" ± {pair.uncertainty:.1%}"
    elif name == HIT_RATE and (both := pair.counted(HIT_RATE)):
        more = f", baseline {formatted(name, both[1])}"
    return Beside(value, f"{formatted(name, found)}{more}", None)


def _statement(it: PublishedStatement, pairs: Sequence[Pair]) -> Beside:
    held = check(it.check, pairs)
    note = it.note if held.holds is not None else "cannot be determined from these points"
    return Beside(PublishedValue(layer=it.about, quantity=STATEMENT, value=it.says, note=note), held.ours, held.holds)

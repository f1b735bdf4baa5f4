"""``reproduce`` without measuring: from recorded rows and profiles, and what is counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from lamina.pipeline.explain import Side, look_up
from lamina.pipeline.imports import import_file
from lamina.pipeline.reproduce.measured import measurement
from lamina.pipeline.reproduce.measured.judging import judge
from lamina.pipeline.reproduce.recorded import label, recorded
from lamina.pipeline.reproduce.sample import Sample
from lamina.pipeline.reproduce.simulated import judged, recorded_pairs
from lamina.pipeline.reproduce.statements import COMPARING, STATEMENT, check
from lamina.recipes import recordings
from lamina.record.beside import Beside
from lamina.spec.published import Published, PublishedStatement, PublishedValue
from lamina.store import open_store

PAPERS = ("dnnmark-alexnet-227", "alexnet")
"""Recorded profiles in which statements are checked where the entry's own network has none: the paper's AlexNet in fp32
for its recipes, and torchvision's for others."""
WHAT_IF = "what-if"
"""The measurement with the recorded rows of executed changes."""

Rows = tuple[Beside, ...]


def from_recorded(entry: Published) -> tuple[Rows, str]:
    """The rows of an entry from what the package ships, and where they are from.

    Args:
        entry: an entry that measures, profiles, changes or simulates.
    """
    if entry.measures or entry.changes:
        known = measurement(entry.measures or WHAT_IF)
        extracts = [recorded(name) for name in known.recorded]
        rows = [row for extract in extracts for row in extract.rows]
        return judge(entry, known, rows), label(extracts)
    if entry.figures:
        return profiled(entry)
    assert entry.simulates is not None
    extract = recorded(entry.recorded)
    pairs = recorded_pairs(entry, entry.simulates, extract.rows)
    return judged(entry, entry.simulates, pairs), label([extract], "simulated")


def profiled(entry: Published) -> tuple[Rows, str]:
    """Statements about a figure, checked in the recorded profiles of its network, one for each GPU."""
    sides = recorded_sides(entry)
    first = sides[0].run
    devices = ", ".join(f"{_device(side)} ({str(side.run.started)[:10]})" for side in sides)
    precision = "/".join(dict.fromkeys(row.precision for row in sides[0].rows))
    return checked_on(entry, sides), f"recorded profile of {first.target} in {precision} on {devices}"


def recorded_sides(entry: Published) -> tuple[Side, ...]:
    """The recorded profiles of an entry's network, or of the nearest one, by GPU."""
    own = entry.recipe.rpartition("/")[2]
    nearest = PAPERS[0] if own.startswith("dnnmark-") else PAPERS[1]
    return _sides(own if recordings.of(own) else nearest)


@cache
def _sides(network: str) -> tuple[Side, ...]:
    found = []
    for path in recordings.of(network):
        with open_store(":memory:") as store:
            found.append(look_up(store, import_file(path, store)))
    return tuple(found)


def checked_on(entry: Published, sides: Sequence[Side]) -> Rows:
    """The statements of an entry on each GPU. Those that compare two are checked once, on the two fastest."""
    rows = []
    for it in entry.statements:
        if it.check in COMPARING:
            rows.append(_compared(it, sides))
            continue
        for side in sides:
            row = checked(it, Sample(side), bool(entry.counters))
            about = it.about if len(sides) == 1 else f"{it.about}, {_device(side)}"
            rows.append(replace(row, value=row.value.model_copy(update={"layer": about})))
    return tuple(rows)


def _compared(it: PublishedStatement, sides: Sequence[Side]) -> Beside:
    """A statement about the speedup of one GPU over another."""
    if len(sides) < 2:
        known = _device(sides[0])
        return Beside(as_value(it), f"needs profiles of two GPUs: {known} is recorded, another is missing", None)
    fast, slow = sorted(sides, key=lambda side: Sample(side).us())[:2]
    row = checked(it, Sample(fast, slow))
    return replace(row, ours=f"{_device(fast)} over {_device(slow)}: {row.ours}")


def _device(side: Side) -> str:
    return str(side.run.environment.get("device"))


def checked(it: PublishedStatement, sample: Sample, counters: bool = False) -> Beside:
    """A statement about a figure, checked in a profile.

    Args:
        counters: whether the figure shows counters; phases that have none are then named.
    """
    held = check(it.check, sample)
    note = it.note if held.holds is not None else "cannot be determined from this run"
    if counters and sample.uncounted:
        note = "; ".join(filter(None, [note, f"no counters of {', '.join(sample.uncounted)}"]))
    return Beside(as_value(it).model_copy(update={"note": note}), held.ours, held.holds)


def as_value(it: PublishedStatement) -> PublishedValue:
    """A statement in the column of values."""
    return PublishedValue(
        layer=it.about, quantity=STATEMENT, value=it.says, note=it.note, not_applicable=it.not_applicable
    )

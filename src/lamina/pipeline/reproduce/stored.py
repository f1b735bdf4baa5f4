"""``reproduce`` without measuring: from recorded rows and profiles, and what is counted."""

from __future__ import annotations

from lamina.pipeline.explain import look_up
from lamina.pipeline.imports import import_file
from lamina.pipeline.reproduce.measured import measurement
from lamina.pipeline.reproduce.measured.judging import judge
from lamina.pipeline.reproduce.recorded import label, recorded
from lamina.pipeline.reproduce.simulated import judged, recorded_pairs
from lamina.pipeline.reproduce.statements import STATEMENT, Sample, check
from lamina.recipes import recordings
from lamina.record.beside import Beside
from lamina.spec.published import Published, PublishedStatement, PublishedValue
from lamina.store import open_store

RECORDING = "alexnet"
"""The recorded profile in which statements about layers are checked."""
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
    """Statements about a figure, checked in a recorded profile of AlexNet with counters."""
    with open_store(":memory:") as store:
        import_file(recordings.path(RECORDING), store)
        run = store.run("latest")
        sample = Sample(look_up(store, run.id), None)
        device = run.environment.get("device")
        source = f"recorded profile of {run.target} on {device}, {str(run.started)[:10]}"
        return tuple(checked(it, sample) for it in entry.statements), source


def checked(it: PublishedStatement, sample: Sample) -> Beside:
    """A statement about a figure, checked in a profile."""
    held = check(it.check, sample)
    note = it.note if held.holds is not None else "cannot be determined from this run"
    return Beside(as_value(it).model_copy(update={"note": note}), held.ours, held.holds)


def as_value(it: PublishedStatement) -> PublishedValue:
    """A statement in the column of values."""
    return PublishedValue(
        layer=it.about, quantity=STATEMENT, value=it.says, note=it.note, not_applicable=it.not_applicable
    )

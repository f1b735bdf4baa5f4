"""All runs of one database into another, run by run: killed and started again, it goes on."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

from lamina.record import Run
from lamina.store.store import Store

What = Literal["copied", "already there", "completed", "differs"]
"""What became of a run. ``completed``: the target had an unfinished state of it. ``differs``: both have ended, and are
not equal; the target's stays."""


@dataclass(frozen=True)
class Merged:
    """A run of the source, and what became of it."""

    run: Run
    what: What


def merge(source: Store, target: Store, dry_run: bool = False) -> Generator[Merged, None, None]:
    """Copy every run that the target does not have, the first to begin first; each is committed before it is yielded.

    Runs keep their ids, so a run is never there twice, whatever is merged in whatever order.

    Args:
        source: only read.
        target: may be of another kind (SQLite or PostgreSQL), and have other writers.
        dry_run: whether only to say what would be done.
    """
    known = {run.id: run for run in target.runs(limit=None)}
    for run in reversed(source.runs(limit=None)):
        if run.id not in known:
            if not dry_run:
                target.import_run(source.export_run(run.id))
            yield Merged(run, "copied")
            continue
        ours, theirs = source.export_run(run.id), target.export_run(run.id)
        if _text(ours) == _text(theirs):
            yield Merged(run, "already there")
        elif known[run.id].status != "done" and run.status == "done":
            if not dry_run:
                target.replace_run(ours)
            yield Merged(run, "completed")
        else:
            yield Merged(run, "already there" if run.status != "done" else "differs")


def _text(document: dict[str, Any]) -> str:
    """A run without the numbers that a database gives its rows."""
    plain = json.loads(json.dumps(document))
    order = {layer["layer_id"]: index for index, layer in enumerate(plain["layers"])}
    for row in (*plain["layers"], *plain["kernels"]):
        row["layer_id"] = order[row["layer_id"]]
    return json.dumps(plain, sort_keys=True)

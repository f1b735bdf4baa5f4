"""What the store has of sweeps: a run for each cell, with the cell's key in its configuration."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from lamina.errors import UsageError
from lamina.pipeline.sweep.cells import Cell
from lamina.record import Run
from lamina.store import Store

SWEEP = "sweep"
"""The key of a run's configuration that holds :class:`CellRun`; also the verb of the run of a whole sweep."""
State = Literal["done", "failed", "pending"]


@dataclass(frozen=True)
class CellRun:
    """The last outcome of a cell: its settings, how often it was tried, and the run with its rows.

    ``found``: a run before this sweep, of an interrupted or another one, had its result.
    """

    key: str
    settings: Mapping[str, Any]
    state: State
    run: str = ""
    reason: str = ""
    attempts: int = 0
    seconds: float = 0.0
    found: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a table, the settings first; ``cell_seconds``, as ``bench`` has a setting ``seconds``."""
        row = {key: value for key, value in asdict(self).items() if key not in ("settings", "found", "seconds")}
        return {**self.settings, **row, "cell_seconds": self.seconds}


def cell_runs(store: Store, wanted: Collection[str]) -> dict[str, CellRun]:
    """The outcomes that the store has of the cells of these keys; one that was done once is done."""
    found: dict[str, CellRun] = {}
    for run in store.runs(limit=None):  # latest first
        cell = run.config.get(SWEEP)
        if not isinstance(cell, Mapping) or (key := str(cell.get("key"))) not in wanted:
            continue
        if key not in found or (found[key].state != "done" and cell.get("state") == "done"):
            known = {name: cell[name] for name in ("state", "reason", "attempts", "seconds") if name in cell}
            found[key] = CellRun(key, dict(cell.get("settings", {})), run=run.id, **known)
    return found


def keep(store: Store, cell: Cell, done: CellRun, documents: Sequence[Mapping[str, Any]], sweep: Run) -> CellRun:
    """Write the runs of a cell, each with all of its rows or not at all; the outcome with the id of the last one.

    The last run holds the cell's key and is written last, so that a cell with a key is complete. A cell that began no
    run gets one without rows.
    """
    own = {name: value for name, value in asdict(done).items() if name not in ("run", "found")}
    config = {SWEEP: {**own, "sweep": sweep.id}}
    if not documents:
        run = _without_rows(cell, done, sweep)
        store.begin(replace(run, config=config))
        return replace(done, run=run.id)
    *before, last = documents
    run_of = {**last["run"], "config": {**last["run"]["config"], **config}}
    if done.state == "failed":
        remarks = [*run_of["remarks"], done.reason]
        run_of |= {"status": "failed", "finished": run_of["finished"] or now(), "remarks": remarks}
    for document in before:
        store.import_run(document)
    return replace(done, run=store.import_run({**last, "run": run_of}))


def _without_rows(cell: Cell, done: CellRun, sweep: Run) -> Run:
    target = next((str(cell.settings[name]) for name in ("spec", "model") if name in cell.settings), cell.command.verb)
    return Run(
        id=uuid.uuid4().hex[:12],
        verb=cell.command.verb,
        target=target,
        command=shlex.join(["lamina", *cell.words]),
        started=now(),
        fingerprint="",
        config={},
        environment=sweep.environment,
        status="done" if done.state == "done" else "failed",
        finished=now(),
        remarks=(done.reason,) if done.reason else (),
    )


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class SweepStatus:
    """How far a sweep is. ``cells`` are those with an outcome; ``total`` counts all."""

    run: Run
    total: int
    done: int
    failed: int
    cells: tuple[CellRun, ...]

    @property
    def pending(self) -> int:
        return self.total - self.done - self.failed


def status(store: Store, sweep: str = "latest") -> SweepStatus:
    """How far a sweep is, by its run's id, or the name of its grid: the latest.

    Raises:
        UsageError: there is no such sweep.
    """
    runs = store.runs(limit=None, verb=SWEEP)
    fitting = [run for run in runs if sweep in ("latest", run.target) or run.id.startswith(sweep)]
    if not fitting:
        names = ", ".join(dict.fromkeys(run.target for run in runs)) or "none"
        raise UsageError(
            f"sweep {sweep!r} is unknown: expected a run's id, or the name of a sweep in the store: {names}"
        )
    run = fitting[0]
    if "keys" not in run.config:  # a simulation
        done, failed = len(store.simulations(run.id)), 0 if run.status == "running" else len(run.remarks)
        return SweepStatus(run, int(run.config.get("jobs", done + failed)), done, failed, ())
    found = cell_runs(store, set(run.config["keys"]))
    states = [cell.state for cell in found.values()]
    ordered = tuple(found[key] for key in run.config["keys"] if key in found)
    return SweepStatus(run, len(run.config["keys"]), states.count("done"), states.count("failed"), ordered)

"""``sweep``: runs the cells of a grid on an engine, and stores what each of them measured."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lamina import measure
from lamina.pipeline.runs import closing as recorded
from lamina.pipeline.sweep.attempts import RETRIES, Attempted, attempt
from lamina.pipeline.sweep.cells import Cell, short_settings
from lamina.pipeline.sweep.engines import Engine, Limits, Lost
from lamina.pipeline.sweep.run_cell import CellResult, CellTask, run_cell
from lamina.pipeline.sweep.stored import SWEEP, CellRun, State, cell_runs, keep
from lamina.record import Run
from lamina.spec.grid import Grid
from lamina.store import Store


@dataclass(frozen=True)
class CellsSwept:
    """A finished sweep: its run, and the outcomes of its cells in the order of the grid."""

    run: Run
    cells: tuple[CellRun, ...]

    @property
    def found(self) -> int:
        """Cells whose results the store had."""
        return sum(cell.found for cell in self.cells)

    @property
    def failed(self) -> tuple[CellRun, ...]:
        return tuple(cell for cell in self.cells if cell.state != "done")


@dataclass(frozen=True)
class Progress:
    """How far a sweep is, and the cell that completed last."""

    done: int
    total: int
    cell: CellRun | None = None


def sweep(
    grid: Grid,
    cells: Sequence[Cell],
    store: Store,
    engine: Engine,
    *,
    limits: Limits | None = None,
    retries: int = RETRIES,
    command: str = "",
    resume: bool = False,
    fresh: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> CellsSwept:
    """Run the cells that the store has no result of, each as a ``lamina`` process with a store of its own.

    This process alone writes to ``store``: the runs of each cell, as soon as it is complete. A failed cell becomes a
    failed run with its reason and what it measured before, and the others go on. A later sweep runs it again.

    Args:
        grid: the grid.
        cells: its cells, as :func:`lamina.pipeline.sweep.cells.cells` makes them.
        store: where the results go, and where those of equal cells are found.
        engine: runs the cells.
        limits: of each cell.
        retries: further attempts of a cell that was killed.
        command: the command line, for provenance.
        resume: complete the last unfinished run of the same grid instead of starting a new one.
        fresh: run the cells that the store has results of again.
        watch: called with progress events.
    """
    keys = {cell.key: cell for cell in cells}
    this = _begin(grid, list(keys), store, command, resume)
    found = {} if fresh else cell_runs(store, keys.keys())
    outcomes = {key: replace(each, found=True) for key, each in found.items() if each.state == "done"}
    folder = Path.cwd()
    tasks = [
        CellTask(key, _words(cell, folder / folder_name(grid.name) / key), str(folder), limits or Limits())
        for key, cell in keys.items()
        if key not in outcomes
    ]
    with recorded(store, this.id) as warnings:
        watch(Progress(len(outcomes), len(keys)))
        with closing(attempt(engine, run_cell, tasks, retries=retries)) as attempts:
            for done in attempts:
                cell = keys[done.task.key]
                documents = () if isinstance(done.outcome, Lost) else done.outcome.documents
                kept = outcomes[cell.key] = keep(store, cell, _outcome(cell, done), documents, this)
                if kept.state == "failed":
                    warnings.append(f"{short_settings(kept.settings)}: {kept.reason}")
                watch(Progress(len(outcomes), len(keys), kept))
    return CellsSwept(store.run(this.id), tuple(outcomes[key] for key in keys))


def _begin(grid: Grid, keys: list[str], store: Store, command: str, resume: bool) -> Run:
    environment = measure.environment("cpu")
    config = grid.to_dict() | {"keys": keys}
    requested = json.dumps([SWEEP, grid.name, config, environment.lamina], sort_keys=True)
    fingerprint = hashlib.sha256(requested.encode()).hexdigest()[:16]
    if resume and (earlier := store.unfinished(fingerprint)):
        store.resume(earlier.id)
        return earlier
    this = Run(
        id=uuid.uuid4().hex[:12],
        verb=SWEEP,
        target=grid.name,
        command=command,
        started=environment.date,
        fingerprint=fingerprint,
        config=config,
        environment=asdict(environment),
    )
    store.begin(this)
    return this


def folder_name(name: str) -> str:
    """The name of a grid as the name of one folder, not a path out of the working directory.

    >>> folder_name("../../deft of LeNet")
    'deft-of-LeNet'
    """
    return re.sub(r"[^\w.]+", "-", name).strip("-.") or "sweep"


def _words(cell: Cell, output: Path) -> tuple[str, ...]:
    """The command line of a cell, with an output folder of its own where it needs one."""
    return (*cell.words, "--output", str(output)) if cell.command.saves else cell.words


def _outcome(cell: Cell, done: Attempted) -> CellRun:
    lost = isinstance(done.outcome, Lost)
    result = CellResult(done.outcome.reason, False, 0.0, ()) if lost else done.outcome
    state: State = "failed" if result.reason else "done"
    return CellRun(
        cell.key, cell.settings, state, reason=result.reason, attempts=done.attempts, seconds=round(result.seconds, 3)
    )

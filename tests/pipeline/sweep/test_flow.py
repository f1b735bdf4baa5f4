"""sweep: cells become runs; what is stored is not run again; failures are rows."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from lamina import measure
from lamina.errors import UsageError
from lamina.pipeline.sweep.cells import Cell, Command, Option, cells
from lamina.pipeline.sweep.engines import Call, Limits, Lost, Outcomes
from lamina.pipeline.sweep.flow import CellsSwept, Progress, folder_name, sweep
from lamina.pipeline.sweep.run_cell import CellResult, CellTask, run_cell
from lamina.pipeline.sweep.stored import status
from lamina.recipes import recordings
from lamina.record import Epoch, Run
from lamina.spec.grid import Grid, parse_grid
from lamina.store import Store, open_store

TRAIN = Command("train", ("train",), {name: Option(name, f"--{name}") for name in ("rate", "seed")})
GRID = "name = 'rates'\nverb = 'train'\nseeds = [0, 1]\n[axes]\nrate = [0.1, 0.2, 0.3]\n"


class Trained:
    """Answers cells with a run of one epoch, but ``without`` a result where that says why."""

    def __init__(self, folder: Path, without: dict[str, Any] | None = None, stop: int = 1000) -> None:
        self.folder, self.without, self.stop = folder, without or {}, stop
        self.ran: list[CellTask] = []

    def map(self, function: Call, tasks: Sequence[Any], limits: Limits) -> Outcomes[Any]:
        assert function is run_cell
        for task in tasks:
            if len(self.ran) == self.stop:
                raise KeyboardInterrupt
            self.ran.append(task)
            rate = task.words[task.words.index("--rate") + 1]
            outcome = self.without.get(rate, "")
            yield task, CellResult(outcome, False, 1.5, self.documents(rate)) if isinstance(outcome, str) else outcome

    def documents(self, rate: str) -> tuple[dict[str, Any], ...]:
        environment = measure.environment("cpu")
        run = Run(uuid4().hex, "train", "lenet5", "lamina train", environment.date, "f", {}, {})
        with open_store(self.folder / "cells.db") as store:
            store.begin(replace(run, environment=asdict(environment), config={"epochs": 1}))
            store.add_epoch(run.id, Epoch(0, 1, 0.1, 1.0, 0.5, 1.0, float(rate), 3.0))
            return (store.export_run(run.id),)


def planned(text: str = GRID) -> tuple[Grid, tuple[Cell, ...]]:
    grid = parse_grid(text, "g")
    return grid, cells(grid, TRAIN, "g", lambda words: "")


def states(done: CellsSwept) -> list[str]:
    return [cell.state for cell in done.cells]


def test_every_cell_is_a_run_with_its_rows(store: Store, tmp_path: Path) -> None:
    events: list[Progress] = []
    done = sweep(*planned(), store, Trained(tmp_path), command="lamina sweep g.toml", watch=events.append)
    assert states(done) == ["done"] * 6 and done.found == 0 and done.failed == ()
    assert done.run.verb == "sweep" and done.run.target == "rates" and done.run.status == "done"
    assert [event.done for event in events] == list(range(7))
    for cell in done.cells:
        run = store.run(cell.run)
        assert run.config["epochs"] == 1 and run.config["sweep"]["settings"] == cell.settings
        assert store.epochs(run.id)[0].test_accuracy == cell.settings["rate"]
    own = {"rate": 0.1, "seed": 1, "state": "done", "reason": "", "attempts": 1, "cell_seconds": 1.5}
    assert done.cells[1].to_dict().items() >= own.items()


def test_sweeps_share_what_they_have_in_common(store: Store, tmp_path: Path) -> None:
    sweep(*planned(), store, Trained(tmp_path))
    engine = Trained(tmp_path)
    done = sweep(*planned(GRID.replace("0.3", "0.4")), store, engine)
    assert [task.words[2] for task in engine.ran] == ["0.4", "0.4"] and done.found == 4
    fresh = Trained(tmp_path)
    assert sweep(*planned(), store, fresh, fresh=True).found == 0 and len(fresh.ran) == 6


def test_an_interrupted_sweep_goes_on(store: Store, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        sweep(*planned(), store, Trained(tmp_path, stop=2))
    found = status(store)
    assert (found.run.status, found.total, found.done, found.pending) == ("interrupted", 6, 2, 4)
    engine = Trained(tmp_path)
    done = sweep(*planned(), store, engine, resume=True)
    assert len(engine.ran) == 4 and done.found == 2 and states(done) == ["done"] * 6
    assert [run.id for run in store.runs(verb="sweep")] == [found.run.id]


def test_failures_are_runs_and_are_tried_again_later(store: Store, tmp_path: Path) -> None:
    without = {"0.1": "the loss is not finite", "0.3": Lost("time limit of 2 s exceeded", "limit")}
    done = sweep(*planned(), store, Trained(tmp_path, without))
    assert states(done) == ["failed", "failed", "done", "done", "failed", "failed"]
    partial, lost = store.run(done.cells[0].run), store.run(done.cells[4].run)
    assert partial.status == lost.status == "failed"
    assert partial.remarks == ("the loss is not finite",) and len(store.epochs(partial.id)) == 1
    assert lost.remarks == ("time limit of 2 s exceeded",) and store.epochs(lost.id) == ()
    assert lost.verb == "train" and lost.command == "lamina train --rate 0.3 --seed 0"
    assert "rate=0.1 seed=0: the loss is not finite" in done.run.remarks
    found = status(store, "rates")
    assert (found.done, found.failed, found.pending) == (2, 4, 0)
    engine = Trained(tmp_path)
    assert states(sweep(*planned(), store, engine)) == ["done"] * 6 and len(engine.ran) == 4
    assert status(store).done == 6
    sweep(*planned(), store, Trained(tmp_path, without), fresh=True)
    assert status(store).done == 6  # a cell that was done once is done


def test_cells_that_write_folders_have_their_own(store: Store, tmp_path: Path) -> None:
    grid, made = planned()
    saving = replace(TRAIN, options={**TRAIN.options, "output": Option("output", "--output")})
    engine = Trained(tmp_path)
    sweep(grid, [replace(cell, command=saving) for cell in made], store, engine)
    folders = {task.words[-1] for task in engine.ran}
    assert len(folders) == 6 and folders == {str(Path.cwd() / "rates" / task.key) for task in engine.ran}


def test_a_sweep_is_found_by_its_name_or_run(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in the store: none"):
        status(store)
    one = sweep(*planned(), store, Trained(tmp_path)).run
    two = sweep(*planned(GRID.replace("rates", "other")), store, Trained(tmp_path)).run
    assert status(store).run == two and status(store, "rates").run == one and status(store, one.id[:6]).run == one
    with pytest.raises(UsageError, match="sweep 'rate' is unknown: .*: other, rates"):
        status(store, "rate")


def run(words: Iterable[str], limits: Limits | None = None) -> CellResult:
    return run_cell(CellTask("k", tuple(words), "/", limits or Limits()))


def test_a_cell_brings_back_what_it_stored() -> None:
    result = run(("runs", "import", str(recordings.path("gpt2_block_nvidia-h200"))))
    assert result.reason == "" and not result.killed and result.seconds > 0
    (document,) = result.documents
    assert document["run"]["status"] == "done" and document["run"]["target"] == "gpt2_block"
    assert len(document["layers"]) == 82 and document["layers"][0]["layer"] == "token"


def test_a_cell_that_fails_says_why() -> None:
    result = run(("bench", "lenet5", "--batch-size", "none"))
    assert result.documents == () and not result.killed
    assert result.reason.startswith("--batch-size: expected positive whole numbers")


def test_a_cell_beyond_its_time_is_killed() -> None:
    result = run(("bench", "lenet5"), Limits(seconds=0.2))
    assert result.reason == "time limit of 0.2 s exceeded" and not result.killed and result.seconds < 10


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "..", "", "a/../../b", "a\0b", "."])
def test_the_folder_of_a_grid_is_below_the_working_directory(name: str, tmp_path: Path) -> None:
    assert (tmp_path / folder_name(name) / "key").resolve().parent.parent == tmp_path

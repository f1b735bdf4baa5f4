"""The progress of a command, and how it ends when it is interrupted."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from lamina.cli.handled import INTERRUPTED, handled
from lamina.cli.watching import PACE, Bar, Watcher
from lamina.pipeline.watch import Stage
from lamina.run import Progress as Training


def test_without_a_terminal_progress_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with Bar() as bar:
        bar.get_time = lambda: now
        task = bar.add_task("lenet5", total=9)
        for second in range(1, 10):
            now = second * PACE / 4
            bar.advance(task)
    assert capsys.readouterr().err.splitlines() == [
        "lenet5: 4 of 9 after 30 s, about 38 s left",
        "lenet5: 8 of 9 after 60 s, about 8 s left",
    ]


def test_stages_and_trainings_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Training(1, 8, 0, 0.1, 2.0, 0.5)
    with Watcher() as watch:
        for event in (Stage("searching", 0, 3), Stage("searching", 2, 3)):
            watch(event)
        (searching,) = watch._bar.tasks
        assert (searching.description, searching.completed, searching.total) == ("searching", 2, 3)
        for step in (1, 8, 1):
            watch(replace(state, step=step))
            (training,) = watch._bar.tasks
            assert (training.completed, training.total) == (step, 8) and training.description.startswith("epoch 1")


def test_short_work_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Watcher():
        pass
    assert capsys.readouterr().err == ""


def work(resume: bool = False, checkpoint: Path | None = None) -> None:
    raise KeyboardInterrupt


def plain() -> None:
    raise KeyboardInterrupt


def resumable(resume: bool = False) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("command", "words", "goes_on"),
    [(plain, [], False), (resumable, [], True), (work, [], False), (work, ["--checkpoint", "x"], True)],
)
def test_an_interrupted_command_offers_resume_only_where_it_helps(
    command: Callable[..., None], words: list[str], goes_on: bool
) -> None:
    app = typer.Typer()
    app.command()(handled(command))
    done = CliRunner().invoke(app, words)
    assert done.exit_code == INTERRUPTED and done.stderr.startswith("lamina: interrupted")
    assert ("--resume" in done.stderr) == goes_on

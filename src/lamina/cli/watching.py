"""A live progress line on stderr, for whatever a verb is doing."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from lamina.cli.handled import working_on
from lamina.pipeline.watch import Changed, Planned, Stage, Working
from lamina.record import Epoch, LayerRun
from lamina.run import Progress as Training

PACE = 30.0
"""Seconds between two lines of progress where no terminal shows a bar."""


def _means(loss: float, accuracy: float) -> str:
    return f"loss {loss:.4f}" + ("" if isnan(accuracy) else f", accuracy {accuracy:.2%}")


class Bar(Progress):
    """A bar on stderr that leaves nothing behind; where that is no terminal, now and then a line."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._printed: dict[TaskID, float] = {}

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._print(task_id)

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._print(task_id)

    def _print(self, task_id: TaskID) -> None:
        task = self._tasks[task_id]
        elapsed = task.elapsed or 0.0
        if self.disable and elapsed >= self._printed.get(task_id, 0.0) + PACE:
            self._printed[task_id] = elapsed
            of = "" if task.total is None else f" of {task.total:g}"
            left = ""
            if task.total is not None and 0 < task.completed < task.total:
                left = f", about {elapsed * (task.total / task.completed - 1):.0f} s left"
            self.say(f"{task.description}: {int(task.completed)}{of} after {elapsed:.0f} s{left}")

    def say(self, text: str) -> None:
        """Write a line above the bar."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class Watcher:
    """Shows events as they come: a bar while measuring or training, notes and failures above it."""

    def __init__(self, working: Callable[[str, str], object] = lambda layer, impl: None) -> None:
        """``working`` is called with each layer that is about to run, and its implementation."""
        self._working = working
        self._bar = Bar()
        self._task: TaskID | None = None
        self._shown: set[str] = set()
        self._planned = ""
        self._stage: tuple[str, int, float] = "", 0, 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, event: Planned | Working | LayerRun | Epoch | Training | Stage | Changed | str) -> None:
        match event:
            case Planned():
                self._planned = f"{event.target}: {event.point}"
                working_on(self._planned)
                self._begin(f"{event.target}: {event.point}", event.rows)
            case Working():
                self._working(event.layer, event.impl)
                working_on(f"{self._planned or event.target}, {event.layer} ({event.impl}), {event.stage}")
            case LayerRun():
                working_on(f"{self._planned or event.impl}, after {event.layer} {event.phase}")
                if self._task is not None:
                    self._bar.advance(self._task)
                if event.outcome == "failed":
                    self.say(f"failed: {event.layer} {event.phase}: {event.reason}")
            case Stage():
                working_on(event.name)
                task = self._continued(event.name, event.done, event.total)
                self._bar.update(task, completed=event.done)
            case Training():
                task = self._continued("training", event.step, event.steps)
                words = f"epoch {event.epoch + 1}  loss {event.train_loss:.4f}"
                words += "" if isnan(event.train_accuracy) else f"  accuracy {event.train_accuracy:.1%}"
                self._bar.update(task, completed=event.step, description=words)
            case Epoch():
                self.say(
                    f"epoch {event.epoch + 1}: train {_means(event.train_loss, event.train_accuracy)}; "
                    f"test {_means(event.test_loss, event.test_accuracy)}; {event.seconds:.1f} s"
                )
            case Changed():
                if event.whole:
                    self.say(event.text)
            case str():
                self.say(event)

    def say(self, text: str) -> None:
        """Write a line above the bar, once."""
        if text not in self._shown:
            self._shown.add(text)
            self._bar.say(text)

    def _continued(self, stage: str, done: float, total: int) -> TaskID:
        """The task of a stage: the current one, unless that is another stage or this one begins again."""
        if self._task is None or (stage, total) != self._stage[:2] or done < self._stage[2]:
            self._begin(stage, total)
        self._stage = stage, total, done
        assert self._task is not None
        return self._task

    def _begin(self, words: str, total: int) -> TaskID:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._stage = "", 0, 0
        self._task = self._bar.add_task(words, total=total)
        return self._task

"""A live progress line on stderr, for whatever a verb is doing."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from lamina.pipeline.watch import Planned
from lamina.record import Epoch, LayerRun
from lamina.run import Progress as Training


class Watcher:
    """Shows events as they come: a bar while measuring or training, remarks and failures above it."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
        )
        self._task: Any = None
        self._said: set[str] = set()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, event: Planned | LayerRun | Epoch | Training | str) -> None:
        match event:
            case Planned():
                self._begin(f"{event.target}: {event.point}", event.rows)
            case LayerRun():
                if self._task is not None:
                    self._bar.advance(self._task)
                if event.outcome == "failed":
                    self.say(f"failed: {event.layer} {event.phase}: {event.reason}")
            case Training():
                if self._task is None:
                    self._begin("training", event.steps)
                words = f"epoch {event.epoch + 1}  loss {event.train_loss:.4f}  accuracy {event.train_accuracy:.1%}"
                self._bar.update(self._task, completed=event.step, description=words)
            case Epoch():
                self.say(
                    f"epoch {event.epoch + 1}: train loss {event.train_loss:.4f}, accuracy {event.train_accuracy:.2%}; "
                    f"test loss {event.test_loss:.4f}, accuracy {event.test_accuracy:.2%}; {event.seconds:.1f} s"
                )
            case str():
                self.say(event)

    def say(self, text: str) -> None:
        """Write a line above the bar, once."""
        if text not in self._said:
            self._said.add(text)
            self.console.print(text, markup=False, highlight=False)

    def _begin(self, words: str, total: int) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(words, total=total)

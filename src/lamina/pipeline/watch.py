"""Progress events of commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from lamina.record import Epoch, LayerRun
from lamina.run import Progress
from lamina.spec import Point

T = TypeVar("T")


@dataclass(frozen=True)
class Planned:
    """Measuring begins: ``rows`` are expected for ``point`` of ``target``."""

    target: str
    point: Point
    rows: int


@dataclass(frozen=True)
class Working:
    """A layer of ``target``, or the whole network, is about to run by ``impl``; ``stage`` is what for."""

    target: str
    layer: str
    impl: str
    stage: str


@dataclass(frozen=True)
class Stage:
    """``done`` of ``total`` steps of a stage of a long job."""

    name: str
    done: float
    total: int


@dataclass(frozen=True)
class Changed:
    """A change of a layer, or of the ``whole`` network, was executed or refused; ``text`` is its result."""

    text: str
    whole: bool

    def __str__(self) -> str:
        return self.text


Watch = Callable[[Planned | Working | LayerRun | Epoch | Progress | Stage | Changed | str], None]


def tracked(name: str, items: Iterable[T], total: int, watch: Watch) -> Iterator[T]:
    """The items, with a `Stage` before each and after the last."""
    done = 0
    for done, item in enumerate(items, 1):
        watch(Stage(name, done - 1, total))
        yield item
    watch(Stage(name, done, total))


def unwatched(event: object) -> None:
    """Ignore all events."""

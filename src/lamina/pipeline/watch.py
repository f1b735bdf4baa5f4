"""Progress events of commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lamina.record import Epoch, LayerRun
from lamina.run import Progress
from lamina.spec import Point


@dataclass(frozen=True)
class Planned:
    """Measuring begins: ``rows`` are expected for ``point`` of ``target``."""

    target: str
    point: Point
    rows: int


Watch = Callable[[Planned | LayerRun | Epoch | Progress | str], None]


def unwatched(event: object) -> None:
    """Ignore all events."""

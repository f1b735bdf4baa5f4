"""The time of a study: what each stage may use, and what it used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lamina import measure


class Budget:
    """Time left for a study and its stage.

    Args:
        seconds: for the whole study; ``None`` for no limit.
        elapsed: seconds since the study began.
    """

    def __init__(self, seconds: float | None, elapsed: Callable[[], float] | None = None) -> None:
        self.seconds = seconds
        self._elapsed = elapsed or _stopwatch()
        self._end = seconds
        self.spent: dict[str, float] = {}

    @property
    def left(self) -> float:
        """Seconds that the stage has left; infinite without a budget."""
        return float("inf") if self._end is None else self._end - self._elapsed()

    @property
    def over(self) -> bool:
        """Whether the stage has no time left."""
        return self.left <= 0

    def covers(self, seconds: float) -> bool:
        """Whether work of this length fits."""
        return self.left >= seconds

    @contextmanager
    def stage(self, name: str, until: float = 1.0, least: float = 0.0) -> Iterator[None]:
        """A stage that ends when the fraction ``until`` of the whole budget is used.

        Where stages before it took longer than they should, it has the fraction ``least`` of what they left.
        """
        begun = self._elapsed()
        if self.seconds is not None:
            self._end = max(until * self.seconds, begun + least * (self.seconds - begun))
        try:
            yield
        finally:
            self.spent[name] = self.spent.get(name, 0.0) + self._elapsed() - begun
            self._end = self.seconds

    @contextmanager
    def part(self, fraction: float) -> Iterator[None]:
        """A part of a stage, which has a fraction of what the stage has left."""
        end = self._end
        if end is not None:
            self._end = self._elapsed() + fraction * max(0.0, self.left)
        try:
            yield
        finally:
            self._end = end


def _stopwatch() -> Callable[[], float]:
    """Seconds without those in which others that share the device were timing."""
    watch, before = measure.Stopwatch(), measure.waited_s()
    return lambda: watch.seconds - (measure.waited_s() - before)

"""Wall time of epochs, progress and totals. Not for kernels: it does not synchronize."""

from __future__ import annotations

import time
from collections.abc import Callable


class Stopwatch:
    """Starts at construction; `seconds` is the total so far, `lap()` the time since the last lap."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._start = self._lap = now()

    @property
    def seconds(self) -> float:
        return self._now() - self._start

    def lap(self) -> float:
        previous, self._lap = self._lap, self._now()
        return self._lap - previous

"""The stopping criterion and the quartiles that all clocks share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lamina.errors import UsageError
from lamina.record.timing import Timing


@dataclass(frozen=True)
class Repeat:
    """The stopping criterion for repeating a callable.

    As in NVBench, sampling continues until there are `min_samples`, `min_time_s` have passed and the relative
    interquartile range is at most `max_noise`. `max_samples` and `max_time_s` always end it, possibly before
    `min_samples` (see the `n` of the Timing). `warmup` calls come first and are not counted.
    """

    min_samples: int = 10
    max_samples: int = 1000
    min_time_s: float = 0.1
    max_time_s: float = 2.0
    max_noise: float = 0.02
    warmup: int = 3

    def __post_init__(self) -> None:
        if not 1 <= self.min_samples <= self.max_samples:
            raise UsageError(f"expected 1 <= min_samples <= max_samples, got {self.min_samples} and {self.max_samples}")
        if not 0 <= self.min_time_s <= self.max_time_s:
            raise UsageError(f"expected 0 <= min_time_s <= max_time_s, got {self.min_time_s} and {self.max_time_s}")
        if not self.max_noise >= 0 or self.warmup < 0:
            raise UsageError(f"expected max_noise and warmup of at least 0, got {self.max_noise} and {self.warmup}")

    def enough(self, samples: Sequence[float], elapsed_s: float) -> bool:
        """Whether these samples, drawn in `elapsed_s` seconds, are sufficient."""
        if not samples:
            return False
        if len(samples) >= self.max_samples or elapsed_s >= self.max_time_s:
            return True
        return len(samples) >= self.min_samples and elapsed_s >= self.min_time_s and noise(samples) <= self.max_noise


DEFAULT = Repeat()


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile; of a single sample, that sample three times."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    q1, median, q3 = statistics.quantiles(samples, n=4, method="inclusive")
    return q1, median, q3


def noise(samples: Sequence[float]) -> float:
    """Interquartile range relative to the median."""
    q1, median, q3 = quartiles(samples)
    if q1 == q3:
        return 0.0
    return (q3 - q1) / median if median > 0 else float("inf")


def collect(
    draw: Callable[[int], Sequence[float]],
    repeat: Repeat,
    *,
    batch: int = 1,
    now: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Draw samples, `batch` at a time, until `repeat` is satisfied. `draw(n)` returns n samples."""
    samples: list[float] = []
    start = now()
    while not repeat.enough(samples, now() - start):
        samples += draw(min(batch, repeat.max_samples - len(samples)))
    return samples


def summarize(samples_us: Sequence[float], clock: str, l2: str, kernels: int | None = None) -> Timing:
    """The Timing of these samples, in microseconds."""
    q1, median, q3 = quartiles(samples_us)
    return Timing(clock, l2, median, q1, q3, len(samples_us), kernels)

"""One timing: what a clock saw of one callable."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Quartiles of repeated times of one callable, with how they were taken."""

    clock: str  # 'cpu', 'wall', 'events', 'graph', 'cupti'
    l2: str  # 'warm', 'cold', or '-' on the CPU
    median_us: float
    q1_us: float
    q3_us: float
    n: int  # samples
    kernels: int | None = None  # kernels (or graph nodes) per call, where the clock can see them

    def overlaps(self, other: Timing) -> bool:
        """Whether the interquartile ranges meet: a difference inside the spread is no difference."""
        return self.q1_us <= other.q3_us and other.q1_us <= self.q3_us

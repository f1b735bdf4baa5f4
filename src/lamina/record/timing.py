"""One timing: what a clock saw of one callable."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

FEWEST = 6
"""Rounds that tell which callable is faster: by chance alone, one is in all of them once in 64 times."""
ONE_LOST = 9
"""Rounds of which the faster callable may lose one."""


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


class Turns(dict[K, Timing | Exception]):
    """Timings of callables, or what went wrong with them, and the times of the rounds in which they took turns."""

    def __init__(self, found: Mapping[K, Timing | Exception], rounds_us: Mapping[K, tuple[float, ...]]) -> None:
        super().__init__(found)
        self.rounds_us = rounds_us

    def is_faster(self, one: K, other: K) -> bool:
        """Whether one callable was faster in each round, but for one of nine.

        What disturbs a machine for longer than a round meets both of them, and widens their spread alone.
        """
        pairs = [*zip(self.rounds_us.get(one, ()), self.rounds_us.get(other, ()), strict=False)]
        lost = sum(ours >= theirs for ours, theirs in pairs)
        return len(pairs) >= FEWEST and lost <= len(pairs) // ONE_LOST

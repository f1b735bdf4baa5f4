"""Attribution of the speedup: a chain of runs from the dense kernel to the engine, each with one more change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lamina.simulate.compaction_engine.unit import Control

CHAIN: tuple[tuple[str, Control, Control], ...] = (
    ("kernel", "dense", "kernel"),
    ("smaller L2", "kernel", "kernel-small-l2"),
    ("prefetch", "kernel-small-l2", "prefetch"),
    ("narrower operands", "prefetch", "prefetch-fp16"),
    ("fewer lines", "prefetch-fp16", "lines"),
    ("skipped multiplications", "lines", "engine"),
)
"""A change, the run without it, and the run with it. ``kernel`` is the effect of the kernel itself: below one if the
sparse kernel is slower on the same values."""
NEEDED: tuple[Control, ...] = (CHAIN[0][1], *(after for _, _, after in CHAIN))


@dataclass(frozen=True)
class Gain:
    """The speedup of a layer by one change; below one is a slowdown."""

    change: str
    factor: float


def attribution(cycles: Mapping[Control, int]) -> tuple[Gain, ...]:
    """The gain of each change, in order; their product is the engine's speedup over the dense kernel.

    If two changes overlap, such as prefetching and narrower lines, the attribution depends on the order.

    Args:
        cycles: of every control in ``NEEDED``.
    """
    return tuple(Gain(change, cycles[before] / cycles[after]) for change, before, after in CHAIN)

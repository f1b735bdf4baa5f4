"""Where a speed-up comes from: a chain of runs from the dense kernel to the engine, each one change apart."""

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
"""A change, the run without it, and the run with it. ``kernel`` is the slack of the baseline, below one where the
sparse kernel is the slower one over the same values."""
NEEDED: tuple[Control, ...] = (CHAIN[0][1], *(after for _, _, after in CHAIN))


@dataclass(frozen=True)
class Gain:
    """How many times as fast one change makes a layer; below one it loses."""

    change: str
    factor: float


def attribution(cycles: Mapping[Control, int]) -> tuple[Gain, ...]:
    """Each change's gain, in order: their product is the engine's speed-up over the dense kernel.

    The order decides how much each gets where two do the same, as reading ahead and narrower lines do.

    Args:
        cycles: of every control in ``NEEDED``.
    """
    return tuple(Gain(change, cycles[before] / cycles[after]) for change, before, after in CHAIN)

"""A kernel launch tied to its layer and phase, and a hardware counter read for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelRun:
    """One launch of a GPU kernel. ``invocation`` counts launches within the layer's phase from 0."""

    layer: str
    phase: str
    invocation: int
    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int | None
    shared_bytes: int | None
    duration_us: float


@dataclass(frozen=True)
class Counter:
    """A hardware counter of one kernel launch; ``value`` is ``None`` where the chip cannot tell."""

    layer: str
    phase: str
    invocation: int
    metric: str
    value: float | None
    unit: str

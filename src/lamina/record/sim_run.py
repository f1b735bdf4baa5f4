"""A simulated kernel: never to be mistaken for a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class SimRun:
    """Cycles and event counts of one simulated kernel on one device description."""

    layer: str
    kernel: str
    device: str
    config: Mapping[str, str | int | float | bool]
    cycles: int
    counters: Mapping[str, int | float]
    sampled: bool = False
    relative_error: float | None = None

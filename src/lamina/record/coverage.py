"""The share of device time that is attributed to a layer and a phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Coverage:
    """Device time of one profiled iteration in one configuration, by whether its origin is known.

    ``strays`` maps the names of kernels without a home to their time in microseconds.
    """

    impl: str
    precision: str
    layout: str
    batch: int
    kernels: int  # launches with a home
    attributed_us: float
    strays: Mapping[str, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Attributed part of the device time, from 0 to 1."""
        total = self.attributed_us + sum(self.strays.values())
        return self.attributed_us / total if total else 1.0

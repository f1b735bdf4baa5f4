"""Which implementation of a layer was selected, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lamina.spec import plan

Mode = plan.PlanMode
"""How a model runs: layers are selected for the modes that a plan may have."""

MODES = plan.MODES


@dataclass(frozen=True)
class Selection:
    """The implementation of a layer that was selected among candidates.

    Attributes:
        impl: the winner: ``dense``, or a candidate such as ``circulant[block_size=64,impl=kernel]``.
        reason: one sentence with the times.
        times_us: of each candidate, in microseconds: its forward pass, and backward in training.
        mode: in which the times were taken.
        refusals: why each other candidate did not run.
        predicted: whether a cost model predicted the times; nothing was timed.
        quartiles_us: the first and third quartile of each time, where they were kept.
    """

    impl: str
    reason: str
    times_us: Mapping[str, float]
    mode: Mode
    refusals: Mapping[str, str] = field(default_factory=dict)
    predicted: bool = False
    quartiles_us: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def speedup(self) -> float | None:
        """Dense over selected, at least 1; ``None`` where dense was no candidate."""
        dense = self.times_us.get("dense")
        return None if dense is None else dense / self.times_us[self.impl]

"""A change that was predicted to help, and what it did when it was executed."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.record.timing import Timing

CHANGES = ("fusion", "without_activations", "l1_bypass", "channels_last", "precision", "cuda_graph", "algorithm")
"""The changes of a whole network by name, in the order in which they are made."""


@dataclass(frozen=True)
class WhatIf:
    """One change of one layer, or of the whole network where ``layer`` is its name and ``phase`` is ``step``.

    ``predicted_us`` comes from records alone, before the change was run; ``rule`` says how. ``after`` is
    ``None`` with a ``reason`` where the change could not be executed.
    """

    change: str  # 'fusion', 'without_activations', 'l1_bypass', 'channels_last', 'precision', 'cuda_graph', ...
    detail: str  # what exactly: 'tf32 -> bf16', 'linear + bias + relu by triton', ...
    layer: str
    phase: str
    precision: str
    batch: int
    before: Timing
    predicted_us: float | None
    rule: str
    after: Timing | None
    rel_error: float | None = None  # of the changed outputs against float64
    reason: str = ""

    @property
    def predicted_gain(self) -> float | None:
        """Predicted speedup minus 1; ``None`` without a prediction, or where a time is zero."""
        return _gain(self.before.median_us, self.predicted_us)

    @property
    def measured_gain(self) -> float | None:
        """Measured speedup minus 1; ``None`` if it was not executed, or where a time is zero: no kernel ran."""
        return _gain(self.before.median_us, self.after.median_us if self.after else None)


def _gain(before_us: float, after_us: float | None) -> float | None:
    return before_us / after_us - 1 if before_us and after_us else None

"""Which implementation a layer ran, as the layer itself reports it."""

from __future__ import annotations

from torch import nn


def executed(module: nn.Module, requested: str, phase: str) -> tuple[str, str]:
    """The implementation that computed a phase in the layer's last pass, and the reason for it.

    A layer that selects among implementations has a method ``executed(phase)`` that returns both.

    Args:
        module: after at least one forward pass.
        requested: the implementation that the row is for, such as ``sparse``; returned for layers that have no choice.
        phase: ``forward``, ``backward_data``, ``backward_weight``, or ``step`` for all of them.
    """
    report = getattr(module, "executed", None)
    if report is None:
        return requested, ""
    impl, reason = report(phase)
    return str(impl), str(reason)

"""Implementations that keep a layer's results: they change no accuracy, and which pays depends on the mode.

Where ``torch.compile`` runs, it fuses activations and poolings itself. A fused unit then saves less than it did in
place of separate kernels, and takes the place of another implementation of its layer.
"""

from __future__ import annotations

from collections.abc import Mapping

from lamina.pipeline.study.combine import Choice
from lamina.pipeline.study.config import lossless
from lamina.spec import Method

Faster = Mapping[str, Mapping[str, float]]
"""By layer, the implementations that are faster than dense, with the microseconds that each saves."""


def lossy(choice: Choice) -> dict[str, str]:
    """The part of a choice that changes results."""
    return {layer: impl for layer, impl in choice.items() if not lossless(impl)}


def is_unit(impl: str) -> bool:
    """Whether an implementation computes a layer with its activation or pooling."""
    return Method.parse(impl).name == "fused"


def without_units(choice: Choice, faster: Faster) -> dict[str, str]:
    """The choice with other implementations that keep results, or dense layers, in place of fused units."""
    result = {layer: impl for layer, impl in choice.items() if not is_unit(impl)}
    for layer in choice.keys() - result.keys():
        others = {impl: saved for impl, saved in faster[layer].items() if lossless(impl) and not is_unit(impl)}
        if others:
            result[layer] = max(others, key=lambda impl: others[impl])
    return result


def with_units(choice: Choice, faster: Faster) -> dict[str, str]:
    """The choice with fused units wherever they save more than what keeps results there."""
    result = dict(choice)
    for layer, row in faster.items():
        current = choice.get(layer)
        units = {impl: saved for impl, saved in row.items() if is_unit(impl)}
        if not units or (current is not None and not lossless(current)):
            continue
        best = max(units, key=lambda impl: units[impl])
        if units[best] > (row.get(current, 0.0) if current else 0.0):
            result[layer] = best
    return result

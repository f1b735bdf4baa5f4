"""The time of a plan, predicted from its layers, each timed alone."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.pipeline.study.layers import Layers
from lamina.pipeline.study.lossless import is_unit
from lamina.pipeline.study.whole import Compared
from lamina.record.study import Measured
from lamina.spec.plan import COMPILED


def predicted_us(layers: Layers, compared: Compared, base: Measured, wholes: Sequence[Measured]) -> float:
    """The plan's step in microseconds: the dense one in its mode, less what its layers save.

    Layers of the plan are timed in it: where inputs are pruned, their neighbours have become smaller too. The
    compiler makes fused units itself: in its modes they save nothing.

    Args:
        layers: the dense layers, and the units.
        compared: the plan, with the time of each of its layers alone.
        base: the dense network at the settings of the plan, but for the mode.
        wholes: the network at uniform settings.
    """
    settings = compared.plan.settings
    dense = next((one for one in wholes if one.settings == settings and one.timing is not None), base)
    units = {layer: impl for layer, impl in compared.choice.items() if is_unit(impl)}
    saved_us = sum(
        layers.dense_us[layer] - time_us
        for layer, time_us in compared.alone_us.items()
        if layer in layers.dense_us and layer not in units
    )
    if settings.mode not in COMPILED:
        saved_us += sum(layers.faster[layer][impl] for layer, impl in units.items())
    return dense.time_us - scale(dense, layers) * saved_us


def scale(dense: Measured, layers: Layers) -> float:
    """What a microsecond saved in a layer alone saves in the whole network: all layers take at most its time."""
    together_us = sum(layers.dense_us.values())
    return min(1.0, dense.time_us / together_us) if together_us else 1.0

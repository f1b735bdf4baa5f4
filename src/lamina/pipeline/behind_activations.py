"""Layers behind activations, by the implementation that computes these as it reads rows, where that is faster.

A layer's own time does not show the passes over memory that this saves, so the whole model is timed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from lamina.accelerate.convert import Where, put
from lamina.accelerate.methods.circulant.activation_fusion import beside_activations, fuse_activations
from lamina.accelerate.select import DENSE, Selector, variant
from lamina.accelerate.select.whole import CONVERTED, select_whole, twin
from lamina.record import Conversion, ConvertedLayer

FUSED = "impl=fused_rows"

MOST = 1.5
"""How much slower alone than the selected implementation: an activation is a few passes over what the layer reads."""


def read_activations(
    model: nn.Module, record: Conversion, example: Any, chosen: Selector, where: Where | None = None
) -> tuple[nn.Module, Conversion]:
    """The model and its record, with `FUSED` layers behind activations if they make a step of the whole faster.

    Args:
        model: after the selection of each layer, with its activations.
        record: of its conversion.
        example: an input of the model.
        chosen: times whole models.
        where: as `fuse_activations` takes it.
    """
    fused = {layer.layer: name for layer in record.replaced if (name := _fused(layer)) is not None}
    if not fused:  # most models, which need not be traced
        return model, record
    behind = {reader[0] for _, _, reader in beside_activations(model, where) if reader is not None}
    paths = [path for path in fused if path in behind]
    if not paths:
        return model, record
    as_selected, reading = twin(model), _reading(twin(model), paths)
    for each in (as_selected, reading):
        fuse_activations(each, where)
    what = f"activations read by {', '.join(paths)}"
    whole = select_whole(as_selected, reading, example, what, chosen)
    if whole.impl != CONVERTED or not whole.times_us:
        return model, record
    times = f"{whole.times_us[CONVERTED]:.0f} us < {whole.times_us[DENSE]:.0f} us"
    saved = f"computes the activation of its inputs: the whole model {times}"
    layers = (
        replace(layer, selection=replace(layer.selection, impl=fused[layer.layer], reason=saved))
        if layer.layer in paths and layer.selection is not None
        else layer
        for layer in record.layers
    )
    return _reading(model, paths), replace(record, layers=tuple(layers))


def _fused(layer: ConvertedLayer) -> str | None:
    """The name of the implementation, if it was timed and not selected but not much slower."""
    if layer.selection is None or FUSED in layer.selection.impl:
        return None
    times = layer.selection.times_us
    name = next((each for each in times if FUSED in each), None)
    return name if name is not None and times[name] <= MOST * times[layer.selection.impl] else None


def _reading(model: nn.Module, paths: list[str]) -> nn.Module:
    for path in paths:
        model = put(model, path, variant(model.get_submodule(path), impl="fused_rows", fallback=True))
    return model

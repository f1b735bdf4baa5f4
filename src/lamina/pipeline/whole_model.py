"""The last question of a conversion: whether the whole model is faster, with all layers that are faster alone or fewer.

A converted layer may launch more kernels than a dense one. Where launch overhead bounds the step, the layers that save
the least alone cost more than they save.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from lamina.accelerate.convert import Where, put, standard
from lamina.accelerate.methods.circulant.activation_fusion import fuse_activations
from lamina.accelerate.select import Selector
from lamina.accelerate.select.selection import DENSE
from lamina.accelerate.select.whole import select_whole
from lamina.accelerate.stand_ins import restore
from lamina.record import Conversion, ConvertedLayer, Selection

FEWER = 2
"""How often half of the layers are left out while the whole model is not faster."""


def faster_whole(
    model: nn.Module,
    dense: nn.Module,
    before: Mapping[str, nn.Module],
    record: Conversion,
    example: Any,
    chosen: Selector,
    where: Where | None = None,
) -> tuple[nn.Module, Conversion]:
    """The model with as many of its converted layers as make its whole step faster, and the record of them.

    All are tried first; then half of them, those that save the most alone, and half of these. Layers that were
    replaced together with others are kept or left out together.

    Args:
        model: converted.
        dense: a twin of the model before.
        before: the modules of the model before, by name.
        record: of the conversion, with selections.
        example: an input of the model.
        chosen: times whole models.
        where: as `fuse_activations` takes it.
    """
    new = {layer.layer: model.get_submodule(layer.layer) for layer in record.replaced}
    groups: dict[int, list[ConvertedLayer]] = {}
    for layer in record.replaced:  # a module that is called under several names is one layer
        groups.setdefault(id(new[layer.layer]), []).append(layer)
    ranked = sorted(groups.values(), key=lambda group: -saved_us(group[0]))
    counts = [len(ranked) >> halvings for halvings in range(1 + FEWER)]
    if any(" + " in layer.kind for layer in record.replaced):  # the others of these are identities now
        counts = counts[:1]
    wholes: list[Selection] = []
    for count in filter(None, counts):
        kept = [layer for group in ranked[:count] for layer in group]
        if wholes:
            model = standard(restored(before, dense))
            for layer in kept:
                model = put(model, layer.layer, new[layer.layer])
            fuse_activations(model, where)
            model = restore(model, activations=False)
        what = "; ".join(f"{layer.layer} {layer.method}" for layer in record.replaced if layer in kept)
        wholes.append(select_whole(dense, model, example, what, chosen))
        if wholes[-1].impl != DENSE:
            return model, with_layers(record, kept, wholes[-1])
    return restored(before, dense), with_layers(record, (), wholes[0])


def saved_us(layer: ConvertedLayer) -> float:
    """What a layer saves alone; 0 where nothing was timed."""
    if layer.selection is None:
        return 0.0
    times = layer.selection.times_us
    return times.get(DENSE, 0.0) - times.get(layer.selection.impl, 0.0)


def restored(before: Mapping[str, nn.Module], dense: nn.Module) -> nn.Module:
    """The user's own modules, with the children and attributes that their copies in ``dense`` kept."""
    for name, module in before.items():
        own = {**vars(dense.get_submodule(name)), "_modules": module._modules}
        module.__dict__.update(own)
        for child, one in module._modules.items():
            if one is not None:
                module._modules[child] = before[f"{name}.{child}" if name else child]
    return before[""]


def with_layers(record: Conversion, kept: Sequence[ConvertedLayer], whole: Selection) -> Conversion:
    """The record of a model that kept these of its converted layers, with the reason for the others."""
    reason = f"the whole model is not faster: {whole.reason}"
    if kept:
        reason = "the whole model is faster with fewer layers"
    layers = (
        layer
        if layer.refusal is not None or layer in kept
        else replace(layer, refusal=reason, parameters_after=layer.parameters_before)
        for layer in record.layers
    )
    return Conversion(record.method, tuple(layers), whole)

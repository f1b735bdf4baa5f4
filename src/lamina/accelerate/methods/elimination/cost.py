"""The cost model of layers with pruned inputs: a roofline over shorter products, and the gathers around them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from lamina.accelerate.select import DENSE, LayerCall
from lamina.accelerate.select.cost import CostModel, Launch, gemm, precision_of

KERNEL = 0.8
"""Rate of this package's products over the library's."""

INNERMOST = 6.0
"""Time of a gather of single elements, along the innermost axis in memory, over one of whole rows; fitted."""


def times_us(dense: nn.Module, kept: float, call: LayerCall, model: CostModel) -> dict[str, float]:
    """Predicted microseconds of a step by implementation, the dense layer's under ``dense``.

    ``gather`` and ``pack`` copy the remaining inputs first, ``slice`` reads a view of them, and ``kernel`` loads them
    itself. In a training step all write a gradient of the whole input.

    Args:
        dense: the layer that is replaced.
        kept: fraction of its products' summed elements that remain.
        call: the layer's inputs.
        model: of the machine.

    Raises:
        UnsupportedError: there is no cost model for the layer.
    """
    sizes, precision = gemm(dense, call), precision_of(call)
    short = replace(sizes, summed=round(sizes.summed * kept), x=round(sizes.x * kept))
    x = call.tensors[0]
    innermost = isinstance(dense, nn.Linear) or (
        x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    )
    element = sizes.itemsize * (INNERMOST if innermost else 1.0)
    copy = Launch(2 * short.x * element)
    scatter = [Launch((sizes.x + short.x) * element)] if model.training and sizes.x_gradient else []
    library = short.launches(model.training)
    kernel, *others = library
    own = [kernel._replace(flops=kernel.flops / KERNEL), *others]
    launches = {
        DENSE: sizes.launches(model.training),
        "slice": [*library, *scatter],
        "gather": [copy, *library, *scatter],
        "pack": [copy, *library, *scatter],
        "kernel": [*own, *scatter],
    }
    return {impl: model.time_us(each, precision) for impl, each in launches.items()}

"""Select again among the implementations of layers that a method has replaced already."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from lamina.accelerate.convert import Progress, described, put
from lamina.accelerate.registry import cell_of
from lamina.accelerate.select import DENSE, Selector, observe
from lamina.errors import UnsupportedError
from lamina.record import Selection


def tune(
    model: nn.Module, example: Any, selector: Selector, *, dense: bool = False, progress: Progress | None = None
) -> tuple[nn.Module, Mapping[str, Selection]]:
    """Time each converted layer in its implementations on what reaches it, and keep the fastest, in place.

    A layer whose ``impl`` was requested keeps it. Weights stay: nothing is projected, pruned or quantized again.

    Args:
        model: with layers that `convert` or `lamina.load` made.
        example: an input of the model, a tuple of inputs, or a dict of keyword arguments.
        selector: times the implementations in one mode.
        dense: whether the dense layer that computes the same (``to_dense()``) is a candidate too. It has more
            parameters, so this is meant for inference.
        progress: is called after each selection.

    Returns:
        The model, and the selection of each layer by its path. Layers that no implementation supports are not in it.

    Raises:
        UsageError: the model does not take the example.
    """
    layers = {name: cell for name, module in model.named_modules() if (cell := cell_of(module)) is not None}
    with torch.set_grad_enabled(selector.training):
        calls = observe(model, layers, example)
    selections: dict[str, Selection] = {}
    for name, (method, candidates) in layers.items():
        layer: Any = model.get_submodule(name)
        if name not in calls:
            continue
        try:
            found = candidates(layer, calls[name], selector)
        except UnsupportedError:
            continue
        made: dict[str, Callable[[], nn.Module]] = {f"{method}[{own}]": make for own, make in found.items()}
        if dense:
            made[DENSE] = layer.to_dense
        question = f"{described(layer)} on {calls[name].signature}"
        selections[name] = selector.select(question, made, calls[name])
        model = put(model, name, made[selections[name].impl]())
        if progress is not None:
            progress(name, selections[name])
    return model, selections

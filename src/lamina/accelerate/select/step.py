"""A layer's step as one callable: forward, and in training backward, in the mode that the model will run in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lamina.accelerate.select.observed import LayerCall
from lamina.record import Mode


def layer_step(module: nn.Module, call: LayerCall, mode: Mode, training: bool) -> Callable[[], object]:
    """The step of a layer on the inputs that it meets in its model.

    Args:
        module: the layer, or a candidate in its place.
        call: its inputs.
        mode: ``compiled`` wraps the layer in ``torch.compile``; ``graph`` steps are for a clock that captures them.
        training: whether a step has a backward pass: gradients of all parameters, and of the inputs where the model
            computes them.
    """
    run: Callable[..., Any] = torch.compile(module, dynamic=False) if mode == "compiled" else module
    leaves, args, kwargs = call.arguments()
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    wanted = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad] + parameters
    device = next((leaf.device.type for leaf in call.tensors), "cpu")
    gradients: list[Tensor] = []

    def autocast() -> AbstractContextManager[object]:
        # Without its cache: a cast weight that an outer region keeps would be left out of the time.
        return nullcontext() if call.autocast is None else torch.autocast(device, call.autocast, cache_enabled=False)

    def forward() -> object:
        with torch.no_grad(), autocast():
            return run(*args, **kwargs)

    def step() -> object:
        with torch.enable_grad():
            with autocast():
                outputs = [y for y in tree_leaves(run(*args, **kwargs)) if isinstance(y, Tensor) and y.requires_grad]
            if not gradients:
                gradients.extend(map(_gradient, outputs))
            return torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)

    return step if training and wanted else forward


def _gradient(y: Tensor) -> Tensor:
    """Normal random values as the loss's gradient, from a generator of their own: the user's is left alone."""
    own = torch.Generator(y.device).manual_seed(0)
    return torch.empty_like(y).normal_(generator=own)

"""The last question of a selection: whether the whole model is faster with what its layers selected."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import torch
from torch import nn

from lamina.accelerate.select.observed import observe, stored, unchanged
from lamina.accelerate.select.selection import DENSE, Selector
from lamina.errors import UsageError
from lamina.record import Selection

CONVERTED = "converted"


def twin(model: nn.Module) -> nn.Module:
    """The model with modules of its own and the same parameters and buffers: it stays when the model is converted."""
    made: dict[int, nn.Module] = {}

    def copied(module: nn.Module) -> nn.Module:
        if id(module) not in made:
            if isinstance(module, torch.jit.ScriptModule):
                return module  # it has no layers that could be converted
            made[id(module)] = new = object.__new__(type(module))  # classes of parametrized modules refuse copies
            new.__dict__ = dict(module.__dict__)
            new._modules = {name: None if one is None else copied(one) for name, one in module._modules.items()}
        return made[id(module)]

    return copied(model)


def select_whole(dense: nn.Module, converted: nn.Module, example: Any, what: str, selector: Selector) -> Selection:
    """Whether a step of the converted model is faster than one of the user's own, in the selector's mode.

    A step is the forward pass, and in training a loss, the gradients of all parameters and an update of copies of them.
    A model whose step cannot be timed, such as one that a CUDA graph cannot capture, stays converted.

    Args:
        dense: the user's model.
        converted: the same after its conversion.
        example: an input, as `observe` takes it.
        what: was selected for the layers.
        selector: times both.
    """
    with torch.set_grad_enabled(selector.training):
        call = observe(converted, [""], example)[""]
    model = sha256(f"{dense} of {stored(dense)} {what}".encode()).hexdigest()[:16]
    try:
        with unchanged(converted, example):
            candidates = {DENSE: lambda: dense, CONVERTED: lambda: converted}
            return selector.select(f"model {model} with its update on {call.signature}", candidates, call, whole=True)
    except UsageError as error:
        return Selection(CONVERTED, f"not compared as a whole: {error}", {}, selector.mode)

"""Optimiser settings under which a block-circulant layer learns as its dense twin would.

A number ``w`` of a block stands for ``k`` dense weights. Its gradient is the sum of theirs, ``k`` times their mean, and
``|W|^2 = k |w|^2``. Plain gradient descent on ``W``, projected back onto circulant blocks, therefore divides the
learning rate for ``w`` by ``k`` and multiplies an L2 penalty by ``k``.

Adam does not see the scale of gradients: each number moves by about the learning rate. To first order that lowers the
loss by the sum of the gradients' sizes, as much as in the dense layer where the ``k`` gradients behind a number agree,
and ``sqrt(k)`` less where they are unrelated. The rule is the mean of both on a logarithmic scale, ``k**0.25`` times
the learning rate. A penalty that is reduce_split_k to the gradient grows ``k`` times; decoupled decay (AdamW) is a multiple of
the learning rate and is divided by as much as that grows, so that weights decay as fast as dense ones.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from lamina.accelerate.methods.circulant.nn import LAYERS
from lamina.errors import UsageError


def parameter_groups(
    model: nn.Module, *, lr: float, weight_decay: float = 0.0, optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
) -> list[dict[str, Any]]:
    """Parameter groups for an optimiser, from the dense model's learning rate and weight decay.

    Returns:
        One group for dense parameters and biases, and one for the blocks of each block size, each with ``params``,
        ``lr``, ``weight_decay`` and ``name``.

    Raises:
        UsageError: the optimiser's rule is not known.
    """
    if optimizer not in ("sgd", "adam", "adamw"):
        raise UsageError(f"optimizer: expected sgd, adam or adamw, got {optimizer!r}")
    sizes = {
        id(parameter): layer.block_size
        for layer in model.modules()
        if isinstance(layer, LAYERS)
        for name, parameter in layer.named_parameters(recurse=False)
        if name.startswith("weight")
    }
    groups: dict[int, list[nn.Parameter]] = {1: []}
    for parameter in model.parameters():
        groups.setdefault(sizes.get(id(parameter), 1), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": lr / k if optimizer == "sgd" else lr * k**0.25,
            "weight_decay": weight_decay / k**0.25 if optimizer == "adamw" else weight_decay * k,
            "name": "dense" if k == 1 else f"circulant[block_size={k}]",
        }
        for k, parameters in groups.items()
        if parameters
    ]

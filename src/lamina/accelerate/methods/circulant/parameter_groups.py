"""Optimizer parameter groups that train block-circulant layers with the hyperparameters of their dense counterparts.

An element ``w`` of a block represents ``k`` dense weights. Its gradient is the sum of theirs, ``k`` times their mean,
and ``|W|^2 = k |w|^2``. SGD on ``W``, projected back onto circulant blocks, therefore divides the learning rate of
``w`` by ``k`` and multiplies an L2 penalty by ``k``.

Adam is invariant to the scale of gradients: each element moves by about the learning rate. To first order that lowers
the loss by the sum of the gradient magnitudes: as much as in the dense layer if the ``k`` gradients of an element
agree, and ``sqrt(k)`` times less if they are uncorrelated. The rule is the geometric mean of both, ``k**0.25`` times
the learning rate. An L2 penalty in the gradient grows ``k`` times. Decoupled weight decay (AdamW) is a multiple of the
learning rate and is divided by the factor of its growth, so that weights decay as fast as dense ones.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from lamina.accelerate.methods.circulant.nn import LAYERS
from lamina.errors import UsageError


def parameter_groups(
    model: nn.Module, *, lr: float, weight_decay: float = 0.0, optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer, from the learning rate and weight decay of the dense model.

    Returns:
        One group for dense parameters and biases, and one for the weights of each block size, with ``params``, ``lr``,
        ``weight_decay`` and ``name``.

    Raises:
        UsageError: the optimizer is not supported.
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

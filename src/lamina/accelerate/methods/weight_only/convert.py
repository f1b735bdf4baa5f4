"""Which layers can be stored in another format."""

from __future__ import annotations

from torch import nn

from lamina.accelerate.methods.weight_only.config import WeightOnly
from lamina.accelerate.methods.weight_only.nn import CONVOLUTIONS, WeightOnlyConv, WeightOnlyLinear
from lamina.errors import UnsupportedError


def refusal(module: nn.Module) -> str | None:
    """Why a layer cannot be converted, or nothing."""
    if type(module) is nn.Linear:
        return None
    if type(module) not in CONVOLUTIONS:
        return f"{type(module).__name__} is neither Linear nor a convolution"
    if module.padding_mode != "zeros":
        return f"it pads by {module.padding_mode}"
    return None


def replace(module: nn.Module, config: WeightOnly) -> nn.Module:
    """The layer in its new form.

    Raises:
        UnsupportedError: the layer is refused.
        UsageError: a weight is not finite, or the format cannot hold it.
    """
    reason = refusal(module)
    if reason:
        raise UnsupportedError(reason)
    return (WeightOnlyLinear if isinstance(module, nn.Linear) else WeightOnlyConv).from_dense(module, config)

"""Conversion to layers with quantized weights."""

from __future__ import annotations

from torch import nn

from lamina.accelerate.common.padding import padding_refusal
from lamina.accelerate.methods.weight_only.config import WeightOnly
from lamina.accelerate.methods.weight_only.nn import CONVOLUTIONS, WeightOnlyConv, WeightOnlyLinear
from lamina.errors import UnsupportedError


def refusal(module: nn.Module) -> str | None:
    """Why a layer's weights cannot be quantized, or nothing."""
    if type(module) is nn.Linear:
        return None
    if type(module) not in CONVOLUTIONS:
        return f"{type(module).__name__} is neither Linear nor a convolution"
    return padding_refusal(module)


def replace(module: nn.Module, config: WeightOnly) -> nn.Module:
    """The layer with quantized weights.

    Raises:
        UnsupportedError: the layer is refused.
        UsageError: a weight is not finite, or it is out of the format's range.
    """
    reason = refusal(module)
    if reason:
        raise UnsupportedError(reason)
    return (WeightOnlyLinear if isinstance(module, nn.Linear) else WeightOnlyConv).from_dense(module, config)

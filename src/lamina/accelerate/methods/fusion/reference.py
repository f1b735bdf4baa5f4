"""The definition of the fused layers: plain operators, one after the other, for any float type and device."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.common.activation_names import Activation
from lamina.accelerate.common.activations import FUNCTIONS
from lamina.accelerate.common.geometry import Pool2dGeometry


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    """``activation(x W^T + b)``: ``x (..., in)``, ``weight (out, in)`` to ``(..., out)``."""
    return FUNCTIONS[activation](F.linear(x, weight, bias))


def bias_relu_max_pool(x: Tensor, bias: Tensor | None, pool: Pool2dGeometry) -> Tensor:
    """``max_pool(relu(x + b))``: ``x (N, C, H, W)`` to ``(N, C, H', W')``."""
    y = F.relu(x if bias is None else x + bias[:, None, None])
    if pool.pointwise:
        return y
    pooled: Tensor = F.max_pool2d(
        y,
        pool.kernel,
        pool.stride,
        pool.padding,
        ceil_mode=pool.ceil_mode,
    )
    return pooled

"""Which layers can be sparsity-adaptive, and the layers that replace them."""

from __future__ import annotations

from typing import Any

from torch import nn

from lamina.accelerate.methods.activation_sparsity.config import Sparse
from lamina.accelerate.methods.activation_sparsity.nn import (
    SparseAdaptiveConv2d,
    SparseAdaptiveLinear,
    conv_refusal,
)
from lamina.errors import UnsupportedError

ADAPTIVE: dict[type[nn.Module], Any] = {nn.Linear: SparseAdaptiveLinear, nn.Conv2d: SparseAdaptiveConv2d}
"""The adaptive layer of each dense one."""


def refusal(module: nn.Module) -> str | None:
    """Why a layer cannot be sparsity-adaptive, or ``None``."""
    name = type(module).__name__
    if type(module) not in ADAPTIVE:
        if next(module.parameters(recurse=False), None) is None:
            return f"{name} has no weights"
        return f"{name} is neither Linear nor Conv2d"
    return conv_refusal(module) if isinstance(module, nn.Conv2d) else None


def replace(module: nn.Module, config: Sparse) -> nn.Module:
    """The adaptive layer of a dense one; they share their parameters.

    Raises:
        UnsupportedError: the layer is refused.
    """
    if reason := refusal(module):
        raise UnsupportedError(reason)
    layer: nn.Module = ADAPTIVE[type(module)].from_dense(
        module, impl=config.impl, weights=config.weights, min_speedup=config.min_speedup
    )
    return layer

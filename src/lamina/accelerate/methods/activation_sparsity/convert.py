"""Which layers can leave out zeros, and what takes their place."""

from __future__ import annotations

from typing import Any

from torch import nn

from lamina.accelerate.methods.activation_sparsity.config import Sparse
from lamina.accelerate.methods.activation_sparsity.nn import SparseAdaptiveConv2d, SparseAdaptiveLinear, uneven_margins
from lamina.errors import UnsupportedError

ADAPTIVE: dict[type[nn.Module], Any] = {nn.Linear: SparseAdaptiveLinear, nn.Conv2d: SparseAdaptiveConv2d}
"""The layer that takes the place of each dense one."""


def refusal(module: nn.Module) -> str | None:
    """Why a layer cannot be sparsity-adaptive, or nothing."""
    kind = type(module).__name__
    if type(module) not in ADAPTIVE:
        if next(module.parameters(recurse=False), None) is None:
            return f"{kind} has no weights"
        return f"{kind} is neither Linear nor Conv2d"
    if isinstance(module, nn.Conv2d):
        if module.groups > 1:
            return f"its outputs are in {module.groups} groups, each a product of its own"
        if module.padding_mode != "zeros":
            return f"its margins are {module.padding_mode}, not zeros"
        return uneven_margins(module)
    return None


def replace(module: nn.Module, config: Sparse) -> nn.Module:
    """The adaptive layer in the place of a dense one, with its very parameters.

    Raises:
        UnsupportedError: the layer is refused.
    """
    if reason := refusal(module):
        raise UnsupportedError(reason)
    layer: nn.Module = ADAPTIVE[type(module)].from_dense(
        module, impl=config.impl, weights=config.weights, margin=config.margin
    )
    return layer

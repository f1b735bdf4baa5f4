"""Which layers can become block-circulant, and how."""

from __future__ import annotations

from typing import Any

from torch import nn

from lamina.accelerate.methods.circulant.config import Circulant
from lamina.accelerate.methods.circulant.nn import (
    BlockCirculantConv1d,
    BlockCirculantConv2d,
    BlockCirculantLinear,
    BlockCirculantLSTM,
)
from lamina.errors import UnsupportedError

_CIRCULANT: dict[type[nn.Module], Any] = {
    nn.Linear: BlockCirculantLinear,
    nn.Conv1d: BlockCirculantConv1d,
    nn.Conv2d: BlockCirculantConv2d,
    nn.LSTM: BlockCirculantLSTM,
}


def refusal(module: nn.Module) -> str | None:
    """Why a layer cannot be block-circulant, or nothing."""
    kind = type(module).__name__
    if type(module) not in _CIRCULANT:
        if next(module.parameters(recurse=False), None) is None:
            return f"{kind} has no weights"
        return f"{kind} is none of Linear, Conv1d, Conv2d, LSTM"
    if isinstance(module, nn.LSTM) and module.proj_size:
        return f"its outputs are projected to {module.proj_size}"
    groups = getattr(module, "groups", 1)
    if groups > 1 and groups in (module.in_channels, module.out_channels):
        return f"{kind} is depthwise: its channels are not mixed"
    return None


def replace(module: nn.Module, config: Circulant) -> nn.Module:
    """The block-circulant layer in the place of a dense one.

    Raises:
        UnsupportedError: the layer is refused, or narrower than a block.
        UsageError: its weights are not finite.
    """
    reason = refusal(module) or _too_narrow(module, config.block_size)
    if reason:
        raise UnsupportedError(reason)
    signs = {} if isinstance(module, nn.LSTM) else {"signs": config.signs}  # an LSTM's states have both signs
    layer: nn.Module = _CIRCULANT[type(module)].from_dense(
        module, config.block_size, init=config.init, rescale=config.rescale, impl=config.impl, **signs
    )
    return layer


def _too_narrow(module: Any, block_size: int) -> str | None:
    match module:
        case nn.Linear():
            widths = {"inputs": module.in_features, "outputs": module.out_features}
        case nn.LSTM():
            widths = {"cells": module.hidden_size}  # its other matrices are that wide, whatever its inputs are
        case _:
            share = " in each group" if module.groups > 1 else ""
            widths = {
                f"input channels{share}": module.in_channels // module.groups,
                f"output channels{share}": module.out_channels // module.groups,
            }
    name, width = min(widths.items(), key=lambda item: item[1])
    return f"block size {block_size} exceeds its {width} {name}" if width < block_size else None

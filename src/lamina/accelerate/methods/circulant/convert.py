"""Which layers the method replaces, and their replacement."""

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
    """The reason why a layer cannot be replaced; ``None`` if it can."""
    name = type(module).__name__
    if type(module) not in _CIRCULANT:
        if next(module.parameters(recurse=False), None) is None:
            return f"{name} has no weights"
        return f"{name} is none of Linear, Conv1d, Conv2d, LSTM"
    if isinstance(module, nn.LSTM) and module.proj_size:
        return f"proj_size={module.proj_size} is not supported"
    groups = getattr(module, "groups", 1)
    if groups > 1 and groups in (module.in_channels, module.out_channels):
        return f"{name} is depthwise: each output channel reads one input channel"
    return None


def replace(module: nn.Module, config: Circulant) -> nn.Module:
    """The block-circulant layer that replaces a dense one.

    Raises:
        UnsupportedError: `refusal` gives a reason, or the layer is smaller than a block.
        UsageError: its weights are not finite.
    """
    reason = refusal(module) or _smaller_than_block(module, config.block_size)
    if reason:
        raise UnsupportedError(reason)
    signs = {} if isinstance(module, nn.LSTM) else {"signs": config.signs}  # hidden states of an LSTM take both signs
    layer: nn.Module = _CIRCULANT[type(module)].from_dense(
        module, config.block_size, init=config.init, rescale=config.rescale, impl=config.impl, **signs
    )
    return layer


def _smaller_than_block(module: Any, block_size: int) -> str | None:
    match module:
        case nn.Linear():
            sizes = {"input features": module.in_features, "output features": module.out_features}
        case nn.LSTM():
            sizes = {"hidden units": module.hidden_size}  # a small input_size only pads the input-to-hidden weight
        case _:
            grouped = " per group" if module.groups > 1 else ""
            sizes = {
                f"input channels{grouped}": module.in_channels // module.groups,
                f"output channels{grouped}": module.out_channels // module.groups,
            }
    name, size = min(sizes.items(), key=lambda item: item[1])
    return f"block size {block_size} exceeds its {size} {name}" if size < block_size else None

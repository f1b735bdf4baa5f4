"""Which layers on-chip fission replaces, and their replacement."""

from __future__ import annotations

from torch import nn

from lamina.accelerate.methods.elimination.config import Eliminated
from lamina.accelerate.methods.elimination.convert import choose
from lamina.accelerate.papers.on_chip_fission.config import OnChipFission
from lamina.accelerate.papers.on_chip_fission.nn import OnChipConv2d, OnChipLinear, conv_refusal
from lamina.errors import UnsupportedError


def refusal(module: nn.Module) -> str | None:
    """The reason why a layer cannot be replaced; ``None`` if it can."""
    if type(module) is nn.Linear:
        return None
    if type(module) is not nn.Conv2d:
        return f"{type(module).__name__} is neither Linear nor Conv2d"
    return conv_refusal(module)


def replace(module: nn.Module, config: OnChipFission) -> nn.Module:
    """The layer that packs operands in shared memory; with ``keep`` below 1, without the channels that are pruned.

    The remaining weights are scaled as in DeftNN's elimination.

    Raises:
        UnsupportedError: `refusal` gives a reason, or elimination refuses the layer.
        UsageError: its weights are not finite.
    """
    reason = refusal(module)
    if reason:
        raise UnsupportedError(reason)
    kind = OnChipLinear if isinstance(module, nn.Linear) else OnChipConv2d
    if config.keep == 1:
        return kind.from_dense(module, config)
    index = choose(module, Eliminated(keep=config.keep))
    return kind.from_dense(module, config, index, module.get_parameter("weight").shape[1] / len(index))

"""Which layers of a sequence can be fused with what follows them, and how.

A fused layer takes the place and the name of the first of its parts; identities take those of the others. So the
other layers keep their names, and state dicts fit as before.
"""

from __future__ import annotations

from torch import nn

from lamina.accelerate.methods.fusion.config import Fusion
from lamina.accelerate.methods.fusion.nn import FusedConv2d, FusedLinear, activation_of, window_of
from lamina.errors import UnsupportedError, UsageError


def refusal(module: nn.Module) -> str | None:
    """Why a layer, or a sequence of them, cannot be fused, or nothing."""
    if isinstance(module, nn.Sequential):
        parts = list(module)
        if len(parts) > 1 and _length(parts, pool=True) == len(parts):
            return None
        return "it is no Linear with its activation, and no Conv2d with its ReLU"
    kind = type(module).__name__
    match module:
        case nn.Linear():
            return "no activation follows it directly in a Sequential"
        case nn.Conv2d() if module.padding_mode != "zeros":
            return f"it pads by {module.padding_mode}"
        case nn.Conv2d():
            return "no ReLU follows it directly in a Sequential"
        case _ if activation_of(module) is not None:
            return "it follows no Linear or Conv2d that could take it in"
    return f"{kind} is neither Linear nor Conv2d"


def runs(sequence: nn.Sequential, config: Fusion) -> list[range]:
    """The places of a sequence's children that become one layer together."""
    parts, found, place = list(sequence), [], 0
    while place < len(parts):
        length = _length(parts[place:], config.pool)
        if length > 1:
            found.append(range(place, place + length))
        place += max(length, 1)
    return found


def replace(module: nn.Module, config: Fusion) -> nn.Module:
    """The fused layer in the place of a sequence.

    Raises:
        UnsupportedError: the sequence is refused.
    """
    reason = refusal(module)
    if reason or not isinstance(module, nn.Sequential):
        raise UnsupportedError(reason or "expected a Sequential")
    if isinstance(module[0], nn.Linear):
        return FusedLinear.from_dense(module, impl=config.impl, l1_bypass=config.l1_bypass)
    # The vendor library's epilogue is one of linear maps.
    impl = "auto" if config.impl == "cublaslt" else config.impl
    return FusedConv2d.from_dense(module, impl=impl, l1_bypass=config.l1_bypass)


def _length(parts: list[nn.Module], pool: bool) -> int:
    """How many layers from the first on become one: 1 where nothing does."""
    first, *rest = parts
    if type(first) is nn.Linear:
        return 2 if rest and activation_of(rest[0]) else 1
    if type(first) is not nn.Conv2d or first.padding_mode != "zeros" or not (rest and type(rest[0]) is nn.ReLU):
        return 1
    if pool and len(rest) > 1 and type(rest[1]) is nn.MaxPool2d:
        try:
            window_of(rest[1])
        except UsageError:
            return 2
        return 3
    return 2

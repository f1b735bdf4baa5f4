"""Conversion of sequences to fused layers. Identities in between, such as folding leaves, do not count.

A fused layer replaces the first of its modules and has its name; ``Identity`` modules replace the others. So all names
and state dicts remain valid.
"""

from __future__ import annotations

from torch import nn

from lamina.accelerate.common.activations import activation_of
from lamina.accelerate.common.padding import padding_refusal
from lamina.accelerate.methods.fusion.config import Fusion
from lamina.accelerate.methods.fusion.nn import FusedConv2d, FusedLinear, window_of
from lamina.errors import UnsupportedError, UsageError


def refusal(module: nn.Module) -> str | None:
    """Why a layer, or a sequence of them, cannot be fused, or nothing."""
    if isinstance(module, nn.Sequential):
        modules = _parts(module)
        if len(modules) > 1 and _length(modules, pool=True) == len(modules):
            return None
        return "it is neither a Linear with an activation nor a Conv2d with a ReLU"
    kind = type(module).__name__
    match module:
        case nn.Linear():
            return "no activation follows it directly"
        case nn.Conv2d():
            return padding_refusal(module) or "no ReLU follows it directly"
        case _ if activation_of(module) is not None:
            return "it follows no Linear or Conv2d that it can be fused with"
    return f"{kind} is neither Linear nor Conv2d"


def runs(sequence: nn.Sequential, config: Fusion) -> list[range]:
    """Ranges of a sequence's children that are fused into one layer each."""
    modules, found, start = list(sequence), [], 0
    while start < len(modules):
        length = _length(modules[start:], config.pool)
        if length > 1:
            found.append(range(start, start + length))
        start += max(length, 1)
    return found


def replace(module: nn.Module, config: Fusion) -> nn.Module:
    """The fused layer that replaces a sequence.

    Raises:
        UnsupportedError: the sequence is refused.
    """
    reason = refusal(module)
    if reason or not isinstance(module, nn.Sequential):
        raise UnsupportedError(reason or "expected a Sequential")
    module = nn.Sequential(*_parts(module))
    if isinstance(module[0], nn.Linear):
        return FusedLinear.from_dense(module, impl=config.impl, l1_bypass=config.l1_bypass)
    # cuBLASLt's epilogue is one of GEMMs.
    impl = "auto" if config.impl == "cublaslt" else config.impl
    return FusedConv2d.from_dense(module, impl=impl, l1_bypass=config.l1_bypass)


def _parts(module: nn.Sequential) -> list[nn.Module]:
    return [one for one in module if not isinstance(one, nn.Identity)]


def _length(modules: list[nn.Module], pool: bool) -> int:
    """How many modules, from the first on, are fused, with identities between them; 1 if none."""
    first, *_ = modules
    parts = [index for index, one in enumerate(modules) if not isinstance(one, nn.Identity) or one is first]
    return parts[_fused([modules[index] for index in parts], pool) - 1] + 1


def _fused(modules: list[nn.Module], pool: bool) -> int:
    """How many modules, from the first on, are fused; 1 if none."""
    first, *rest = modules
    if type(first) is nn.Linear:
        return 2 if rest and activation_of(rest[0]) else 1
    if type(first) is not nn.Conv2d or padding_refusal(first) or not (rest and type(rest[0]) is nn.ReLU):
        return 1
    if pool and len(rest) > 1 and type(rest[1]) is nn.MaxPool2d:
        try:
            window_of(rest[1])
        except UsageError:
            return 2
        return 3
    return 2

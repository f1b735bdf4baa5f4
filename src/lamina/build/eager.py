"""Networks that ``torch.compile`` wraps, as they are written."""

from __future__ import annotations

from torch import nn

COMPILED = "compiled by torch.compile: its layers are measured as they are written, in eager mode"


def is_compiled(network: nn.Module) -> bool:
    """Whether ``torch.compile`` wraps the network or a part of it, or ``Module.compile`` was called on one."""
    return any(_wrapped(module) is not module or _compiled_call(module) for module in network.modules())


def eager(network: nn.Module) -> nn.Module:
    """The network without the wrappers, in place; the compiler would see the hooks that tracing needs."""
    network = _wrapped(network)
    for module in network.modules():
        if _compiled_call(module):
            module._compiled_call_impl = None
        for name, child in module._modules.items():
            if child is not None:
                module._modules[name] = _wrapped(child)
    return network


def _wrapped(module: nn.Module) -> nn.Module:
    """What ``torch.compile`` wraps, else the module; recognized without an import of the compiler, which is slow."""
    # Scripted modules, which cannot be wrapped, hold their parts in a mapping without ``get``.
    while "_orig_mod" in module._modules and isinstance(inner := module._modules["_orig_mod"], nn.Module):
        module = inner
    return module


def _compiled_call(module: nn.Module) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None

"""The modules of a model to monitor."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

import torch
from torch import nn

from lamina.accelerate.training.sparsity_monitor.parameters import require
from lamina.errors import UsageError, nearest

_ACTIVATION = re.compile(r"elu|lu$|swish|mish|tanh|sigmoid|activation", re.IGNORECASE)
"""Names of classes of activations, of any package: GELU, SiLU, QuickGELUActivation."""


def select_modules(model: nn.Module, names: Iterable[str] | None) -> dict[str, nn.Module]:
    """The modules to monitor, each once: those named, or every ReLU.

    In a model without `nn.ReLU` modules these are its other activations, such as GELU, and in one without any
    activation module all modules without children; what returns no tensor is not observed.

    Raises:
        UsageError: a name is unknown, or none is given.
    """
    if names is None:
        named: dict[str, nn.Module] = dict(model.named_modules())
        leaves = {name: module for name, module in named.items() if _observable(module)}
        relus = {name: leaves[name] for name in leaves if isinstance(leaves[name], nn.ReLU)}
        others = {name: module for name, module in leaves.items() if _ACTIVATION.search(type(module).__name__)}
        return relus or others or leaves
    everywhere = dict(model.named_modules(remove_duplicate=False))
    picked: dict[str, nn.Module] = {}
    require(Iterable, "names of modules", modules=names)
    for name in names:
        require(str, "names of modules", modules=name)
        if name not in everywhere:
            raise UsageError(f"monitor: {name!r} is no module of the model: {nearest(name, everywhere)}")
        if everywhere[name] not in picked.values():
            picked[name] = everywhere[name]
    if not picked:
        raise UsageError("monitor: expected at least one module to monitor, got none")
    return picked


def _observable(module: nn.Module) -> bool:
    """Whether a module is a leaf that takes hooks."""
    return not any(True for _ in module.children()) and not isinstance(module, torch.jit.ScriptModule)


def check_paces(patterns: Iterable[str], names: Iterable[str]) -> None:
    """Check that each pattern of a schedule fits a monitored module; ``:2`` at its end is a module's second call.

    Raises:
        UsageError: with the nearest name.
    """
    names = [*names]
    for pattern in patterns:
        module = pattern.partition(":")[0]
        if not any(fnmatchcase(name, module) for name in names):
            raise UsageError(f"monitor: schedule of {pattern!r} fits no monitored module: {nearest(module, names)}")

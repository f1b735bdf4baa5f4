"""The modules of a model to monitor."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import nn

from lamina.errors import UsageError, nearest


def select_modules(model: nn.Module, names: Iterable[str] | None) -> dict[str, nn.Module]:
    """The modules to monitor, each once: those named, or every ReLU.

    Raises:
        UsageError: there are none, or a name is unknown.
    """
    modules = dict(model.named_modules())
    if names is None:
        found: dict[str, nn.Module] = {n: module for n, module in modules.items() if isinstance(module, nn.ReLU)}
        if not found:
            raise UsageError(
                f"monitor: expected a model with nn.ReLU modules, got a {type(model).__name__} without any; "
                "name the modules whose outputs to monitor"
            )
        return found
    everywhere = dict(model.named_modules(remove_duplicate=False))
    picked: dict[str, nn.Module] = {}
    for name in names:
        if name not in everywhere:
            raise UsageError(f"monitor: {name!r} is no module of the model: {nearest(name, everywhere)}")
        if everywhere[name] not in picked.values():
            picked[name] = everywhere[name]
    if not picked:
        raise UsageError("monitor: expected at least one module to monitor, got none")
    return picked


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

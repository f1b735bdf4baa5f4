"""Sparsity-adaptive layers fed by a monitor: each gets the density of the activation map that it reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lamina.accelerate.select.observed import as_arguments
from lamina.accelerate.training.sparsity_monitor.attach import Monitor
from lamina.accelerate.training.sparsity_monitor.parameters import Parameters

_monitors: WeakKeyDictionary[nn.Module, Monitor] = WeakKeyDictionary()


def wire(model: nn.Module, example: Any, layers: Iterable[str], parameters: Parameters | None = None) -> Monitor | None:
    """Monitor the maps that layers read, and let the layers select by their densities.

    Args:
        model: with sparsity-adaptive layers; it is watched from now on.
        example: an input of the model, with which the maps are found.
        layers: paths of the adaptive layers.
        parameters: of the monitor.

    Returns:
        The monitor, which `monitor_of` finds again; ``None`` if no module produces a map that a layer reads. Such
        layers keep the density that they had.
    """
    maps = maps_read(model, example, layers)
    if not maps:
        return None
    monitor = Monitor(model, parameters, modules=sorted({*maps.values()}))
    for name, module in maps.items():
        layer: Any = model.get_submodule(name)
        layer.density = partial(_latest, monitor, module, layer.density)
    _monitors[model] = monitor
    return monitor


def monitor_of(model: nn.Module) -> Monitor | None:
    """The monitor that feeds a model's adaptive layers; its ``detach`` ends it."""
    return _monitors.get(model)


def maps_read(model: nn.Module, example: Any, layers: Iterable[str]) -> Mapping[str, str]:
    """By layer, the module whose output it reads; layers that read no module's output are left out."""
    produced: dict[int, str] = {}
    read: dict[str, str] = {}
    kept: list[Tensor] = []  # so that no storage is used again meanwhile
    names = {model.get_submodule(name): name for name in layers}

    def before(module: nn.Module, args: Any) -> None:
        if args and isinstance(args[0], Tensor):
            producer = produced.get(args[0].untyped_storage().data_ptr())
            if producer is not None:
                read[names[module]] = producer

    def after(module: nn.Module, args: Any, output: Any, *, name: str) -> None:
        if isinstance(output, Tensor):
            kept.append(output)
            produced[output.untyped_storage().data_ptr()] = name

    handles = [module.register_forward_pre_hook(before) for module in names]
    for name, module in model.named_modules():
        if name and not any(True for _ in module.children()):
            handles.append(module.register_forward_hook(partial(after, name=name)))
    args, kwargs = as_arguments(example)
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()  # no running statistics change
        with torch.no_grad():
            model(*args, **kwargs)
    finally:
        for module, mode in training.items():
            module.training = mode
        for handle in handles:
            handle.remove()
    return read


def _latest(monitor: Monitor, module: str, before: Any) -> Any:
    """The latest density of a map; until there is one, the density at the conversion."""
    latest = monitor.latest(module)
    return latest if latest is not None or before is None else before()

"""The one verb of every method: replace a model's layers, and say what happened to each.

A method is a *cell*, a folder of this room. Its ``config.py`` holds one frozen configuration, its ``convert.py`` two
functions: ``refusal(module)`` gives the reason why a layer cannot be converted, or nothing, and ``replace(module,
config)`` returns the new layer, or raises UnsupportedError where the configuration does not fit this one. A cell that
replaces neighbours together also has ``runs(sequential, config)``, which gives their places; ``replace`` is then given
a Sequential of them, its layer takes the first one's place and name, and identities those of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType

from torch import nn

from lamina.accelerate.registry import converter, method_of
from lamina.errors import UnsupportedError, UsageError
from lamina.record import Conversion, ConvertedLayer

Where = Callable[[str, nn.Module], bool]
"""Whether to convert the layer of this name."""


def convert(model: nn.Module, config: object, where: Where | None = None) -> tuple[nn.Module, Conversion]:
    """Replace layers in place, under their own names.

    Args:
        model: changed in place, unless it is itself a layer that is replaced.
        config: a method's configuration, such as ``Circulant(block_size=64)``.
        where: ``where(name, layer)`` says which layers to convert; all, if left out.

    Returns:
        The model, and a record of every layer replaced and every layer skipped with its reason.

    Raises:
        UsageError: ``config`` is no configuration of a method, or a layer's weights cannot be used.
    """
    cell = converter(config)
    written = str(method_of(config))
    owners = _owners(model)
    layers: list[ConvertedLayer] = []
    replaced: dict[tuple[int, ...], nn.Module] = {}
    for unit in _units(model, cell, config):
        names, modules = list(unit), list(unit.values())
        module = modules[0] if len(modules) == 1 else nn.Sequential(*modules)
        reason = next(filter(None, (_kept(*part, owners, where) for part in unit.items())), None)
        reason = reason or cell.refusal(module)
        key = tuple(map(id, modules))
        if reason is None and key not in replaced:
            try:
                replaced[key] = cell.replace(module, config)
            except UnsupportedError as error:
                reason = str(error)
            except UsageError as error:
                raise UsageError(f"{names[0] or 'model'}: {error}") from error
        if reason is not None:
            layers += [ConvertedLayer(n, _kind(m), written, _numel(m), _numel(m), reason) for n, m in unit.items()]
            continue
        kind = " + ".join(map(_kind, modules))
        layers.append(ConvertedLayer(names[0], kind, written, _numel(module), _numel(replaced[key])))
        for name, new in zip(names, [replaced[key], *(nn.Identity() for _ in names[1:])], strict=True):
            model = _put(model, name, new)
    return model, Conversion(written, tuple(layers))


def _units(model: nn.Module, cell: ModuleType, config: object) -> list[dict[str, nn.Module]]:
    """What is replaced at once, each with its layers by name: one layer, or a cell's run of neighbours."""
    layers = dict(model.named_modules(remove_duplicate=False))
    runs: dict[str, list[str]] = {}
    for name, module in layers.items() if hasattr(cell, "runs") else ():
        if isinstance(module, nn.Sequential):
            children = [f"{name}.{child}" if name else child for child in module._modules]
            runs |= {children[run[0]]: [children[place] for place in run] for run in cell.runs(module, config)}
    later = {name for run in runs.values() for name in run[1:]}
    leaves = [name for name, module in layers.items() if not any(True for _ in module.children())]
    return [{n: layers[n] for n in runs.get(name, [name])} for name in leaves if name not in later]


def _kept(name: str, module: nn.Module, owners: Mapping[int, set[int]], where: Where | None) -> str | None:
    """Why a layer stays whatever the method is."""
    if where is not None and not where(name, module):
        return "not selected"
    if any(len(owners[id(parameter)]) > 1 for parameter in module.parameters()):
        return "its weights are shared with another layer"
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(module, attribute) for attribute in hooks):
        return "it has hooks, which a new layer would lose"
    return None


def _owners(model: nn.Module) -> dict[int, set[int]]:
    """The modules that hold each parameter."""
    owners: dict[int, set[int]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(id(module))
    return owners


def _kind(module: nn.Module) -> str:
    return type(module).__name__


def _numel(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _put(model: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    if not name:
        return layer
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, layer)
    return model

"""The one verb of every method: replace a model's layers, and say what happened to each.

A method is a *cell*, a folder of this room. Its ``config.py`` holds one frozen configuration, its ``convert.py`` two
functions: ``refusal(module)`` gives the reason why a layer cannot be converted, or nothing, and ``replace(module,
config)`` returns the new layer, or raises UnsupportedError where the configuration does not fit this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from torch import nn

from lamina.errors import UnsupportedError, UsageError, nearest
from lamina.record import Conversion, ConvertedLayer
from lamina.spec import Method

CELLS: Mapping[str, str] = {
    "circulant": "circulant",
    "sparse": "sparsity",
    "eliminated": "elimination",
    "fissioned": "fission",
}
"""The cell of each method. A cell is imported when it is first asked for."""

Where = Callable[[str, nn.Module], bool]
"""Whether to convert the layer of this name."""


def installed(method: Method) -> bool:
    """Whether this lamina has the method's cell."""
    return method.name in CELLS and find_spec(f"{__package__}.{CELLS[method.name]}") is not None


def configuration(method: Method) -> Any:
    """The configuration that a written method stands for: ``circulant[block_size=64]``.

    Raises:
        UsageError: the method is no acceleration, or an option is unknown or wrong.
    """
    if method.name not in CELLS:
        raise UsageError(f"{method}: {nearest(method.name, CELLS)}")
    if not installed(method):
        raise UsageError(f"{method}: this lamina has no {CELLS[method.name]} cell")
    kind = _config_class(import_module(f"{__package__}.{CELLS[method.name]}.config"))
    names = [field.name for field in fields(kind)]
    for name, _ in method.options:
        if name not in names:
            raise UsageError(f"{method}: option {name!r} is unknown: {nearest(name, names)}")
    return kind(**{name: _truth(value) for name, value in method.options})


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
    cell = _cell(config)
    written = str(_method(config))
    owners = _owners(model)
    layers: list[ConvertedLayer] = []
    replaced: dict[int, nn.Module] = {}
    leaves = [
        (name, module)
        for name, module in model.named_modules(remove_duplicate=False)
        if not any(True for _ in module.children())
    ]
    for name, module in leaves:
        before = sum(parameter.numel() for parameter in module.parameters())
        reason = _kept(name, module, owners, where) or cell.refusal(module)
        if reason is None and id(module) not in replaced:
            try:
                replaced[id(module)] = cell.replace(module, config)
            except UnsupportedError as error:
                reason = str(error)
            except UsageError as error:
                raise UsageError(f"{name or 'model'}: {error}") from error
        after = before
        if reason is None:
            new = replaced[id(module)]
            after = sum(parameter.numel() for parameter in new.parameters())
            model = _put(model, name, new)
        layers.append(ConvertedLayer(name, type(module).__name__, written, before, after, reason))
    return model, Conversion(written, tuple(layers))


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


def _put(model: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    if not name:
        return layer
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, layer)
    return model


def _cell(config: object) -> ModuleType:
    """The ``convert`` module beside the configuration's own."""
    package, _, file = type(config).__module__.rpartition(".")
    if not (is_dataclass(config) and not isinstance(config, type) and file == "config"):
        raise UsageError(f"config: expected a method's configuration such as Circulant(block_size=64), got {config!r}")
    return import_module(f"{package}.convert")


def _method(config: Any) -> Method:
    """A configuration as it is written: its first option, and those that are not at their defaults."""
    folder = type(config).__module__.split(".")[-2]
    name = next((method for method, cell in CELLS.items() if cell == folder), folder)
    told = [
        (field.name, getattr(config, field.name))
        for index, field in enumerate(fields(config))
        if index == 0 or field.default is MISSING or getattr(config, field.name) != field.default
    ]
    options = [(key, value if isinstance(value, int | float | str) else str(value)) for key, value in told]
    return Method(name, options=tuple((key, str(v).lower() if isinstance(v, bool) else v) for key, v in options))


def _config_class(module: ModuleType) -> type[Any]:
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and is_dataclass(kind)]
    own = [kind for kind in kinds if kind.__module__ == module.__name__]
    if len(own) != 1:
        raise UsageError(f"{module.__name__}: expected one configuration, got {[kind.__name__ for kind in own]}")
    return own[0]


def _truth(value: int | float | str) -> int | float | str | bool:
    return {"true": True, "false": False}.get(str(value).lower(), value)

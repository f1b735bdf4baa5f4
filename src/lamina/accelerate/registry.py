"""From the registry's lines to the cells: configuration classes, and modules that replace layers.

A cell is imported when it is first used, so that the list itself costs nothing to read.
"""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from inspect import signature
from types import ModuleType
from typing import Any

from lamina.errors import UsageError, nearest
from lamina.spec import METHODS, Method, MethodInfo

CELLS = {name: info for name, info in METHODS.items() if info.cell}
"""The methods that replace layers, by name."""


def config_class(name: str) -> type[Any]:
    """The configuration class of a method, such as `Circulant` of ``"circulant"``."""
    info = CELLS[name]
    kind: type[Any] = getattr(import_module(f"{info.package}.config"), info.config)
    return kind


def configuration(method: Method) -> Any:
    """The configuration that a written method stands for: ``circulant[block_size=64]``.

    Raises:
        UsageError: the method replaces no layers, or an option is unknown or wrong.
    """
    if method.name not in CELLS:
        raise UsageError(f"{method}: {nearest(method.name, CELLS)}")
    kind = config_class(method.name)
    names = [*signature(kind).parameters]  # deprecated options too, which are no fields
    for name, _ in method.options:
        if name not in names:
            raise UsageError(f"{method}: option {name!r} is unknown: {nearest(name, names)}")
    return kind(**{name: _parsed(value) for name, value in method.options})


def as_method(given: Any) -> Method:
    """The method of what may be one, its written form, or a configuration.

    Raises:
        UsageError: it is none of these, or the method is unknown.
    """
    if isinstance(given, str):
        return Method.parse(given)
    return given if isinstance(given, Method) else method_of(given)


def known_options(impl: str) -> Method:
    """An implementation without what its configuration does not have, such as a tile or an observed density.

    Raises:
        UsageError: the method is unknown.
    """
    method = Method.parse(impl)
    if method.dense:
        return method
    names = [*signature(config_class(method.name)).parameters]
    return Method(method.name, options=tuple((key, value) for key, value in method.options if key in names))


def method_of(config: Any) -> Method:
    """A configuration in its written form: its first option, and all that differ from their defaults.

    Raises:
        UsageError: it is not the configuration of a method.
    """
    info = _info(config)
    options = [
        (field.name, getattr(config, field.name))
        for index, field in enumerate(fields(config))
        if index == 0 or field.default is MISSING or getattr(config, field.name) != field.default
    ]
    return Method(info.name, options=tuple((name, _written(value)) for name, value in options))


def converter(config: Any) -> ModuleType:
    """The ``convert`` module of a configuration's cell.

    Raises:
        UsageError: it is not the configuration of a method.
    """
    return import_module(f"{_info(config).package}.convert")


def candidates_of(config: Any) -> Any:
    """``candidates(layer, call, selector)`` of a configuration's cell: what a selection compares."""
    return import_module(f"{_info(config).package}.candidates").candidates


def predictions_of(config: Any) -> Any:
    """``predictions(dense, layer, call, model)`` of a configuration's cell: the same by its cost model."""
    return import_module(f"{_info(config).package}.candidates").predictions


def cell_of(layer: Any) -> tuple[str, Any] | None:
    """The method of a layer that a cell made, and the cell's ``candidates``; ``None`` for any other module."""
    for info in CELLS.values():
        if type(layer).__module__.startswith(f"{info.package}."):
            return info.name, import_module(f"{info.package}.candidates").candidates
    return None


def _info(config: Any) -> MethodInfo:
    module, name = type(config).__module__, type(config).__name__
    for info in CELLS.values():
        if is_dataclass(config) and (module, name) == (f"{info.package}.config", info.config):
            return info
    raise UsageError(f"config: expected a method's configuration such as Circulant(block_size=64), got {config!r}")


def _parsed(value: int | float | str) -> int | float | str | bool:
    return {"true": True, "false": False}.get(str(value).lower(), value)


def _written(value: Any) -> int | float | str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, int | float | str) else str(value)

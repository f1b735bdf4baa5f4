"""Packages whose public names are imported when they are first used (PEP 562).

What a name costs to import is paid by those who use it: PyTorch takes two seconds, the compiler and the database more.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

_NAMES = "__lazy_names__"


class LazyPackage(ModuleType):
    """A package that imports the names in its ``__lazy_names__`` at first use."""

    def __getattr__(self, name: str) -> Any:
        source = self.__dict__[_NAMES].get(name)
        if source is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module, _, attribute = source.partition(":")
        value = self.__dict__[name] = getattr(import_module(module), attribute)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system binds a submodule to its package. Where a function has the same name, as in lamina.pipeline,
        # the package keeps the function, and `from lamina.pipeline.bench import ...` works all the same.
        if not (name in self.__dict__[_NAMES] and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__dict__[_NAMES]} - {_NAMES})


def lazy(package: str, names: Mapping[str, str]) -> None:
    """Let a package import names when they are first used.

    Args:
        package: its ``__name__``.
        names: for each name where it is defined, such as ``"lamina.pipeline.bench:bench"``.
    """
    module = sys.modules[package]
    module.__dict__[_NAMES] = dict(names)
    module.__class__ = LazyPackage

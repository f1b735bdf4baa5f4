"""Measurements of published tables and figures on this device. Functions return rows as the recorded ones are."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

from lamina.pipeline.reproduce.measured.judging import Rows, Scope


def live(module: str, function: str) -> Callable[[Scope], Rows]:
    """A function of this package that is imported when it is called, since it imports PyTorch.

    Rows of one scope are measured once in a process: several entries share them.
    """

    @cache
    def run(scope: Scope) -> Rows:
        found: Rows = getattr(import_module(f"{__name__}.{module}"), function)(scope)
        return found

    return run

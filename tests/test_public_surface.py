"""The names that users import: a new method, verb or command cannot be forgotten, and none can disappear unnoticed."""

import subprocess
import sys
from types import FunctionType, ModuleType
from typing import Any

import pytest
import typer

import lamina
from lamina import pipeline
from lamina.accelerate import registry
from lamina.cli import app
from lamina.spec import METHODS

COMMANDS: Any = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OTHER_COMMANDS = {"runs", "store", "serve", "models", "methods", "recipes", "counters", "convert-config", "env"}
"""Commands that are no verbs: they list what there is."""
OTHER_VERBS = {"convert", "graphed", "load"}
"""Verbs that are no commands: they take a module of the caller."""


def test_the_package_exports_the_verbs_of_users_and_every_configuration() -> None:
    configurations = {info.config for info in METHODS.values() if info.cell}
    verbs = {"apply", "convert", "graphed", "graphed_step", "load", "load_front", "open_store"}
    assert set(lamina.__all__) == verbs | configurations
    assert lamina.__all__ == sorted(lamina.__all__)
    assert set(lamina.__all__) <= set(dir(lamina))


@pytest.mark.parametrize("method", sorted(registry.CELLS))
def test_a_configuration_is_the_class_of_its_cell(method: str) -> None:
    assert getattr(lamina, METHODS[method].config) is registry.config_class(method)


def test_the_verbs_of_the_package_are_those_of_the_pipeline() -> None:
    assert lamina.convert is pipeline.convert and lamina.load is pipeline.load and lamina.graphed is pipeline.graphed


def test_every_verb_is_a_function_with_documentation() -> None:
    for name in pipeline.VERBS:
        verb = getattr(pipeline, name)
        assert isinstance(verb, FunctionType) and verb.__doc__, name


def test_every_verb_is_a_command() -> None:
    commands = {name.replace("-", "_") for name in COMMANDS} - {name.replace("-", "_") for name in OTHER_COMMANDS}
    assert commands == set(pipeline.VERBS) - OTHER_VERBS


def test_the_surface_of_the_pipeline() -> None:
    assert set(pipeline.VERBS) | {
        *("Described", "Memory", "Options", "Planned", "Reproduced", "VERBS", "Watch"),
        *("compare_counters", "compare_kernels", "compare_layers", "describe", "find", "graphed_step"),
        *("import_file", "iterate", "look_up", "memory", "metrics", "needs_torch", "passes"),
    } == set(pipeline.__all__)
    assert not [name for name in pipeline.__all__ if isinstance(getattr(pipeline, name), ModuleType)]


def test_a_verb_stays_a_function_when_its_module_is_imported() -> None:
    code = "import sys, lamina.pipeline.bench as b; assert b is sys.modules['lamina.pipeline.bench'].bench"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("package", [lamina, pipeline])
def test_an_unknown_name_is_an_attribute_error(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'bnech'"):
        package.bnech

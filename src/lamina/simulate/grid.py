"""Grids of configurations: common settings, and axes whose values are combined (Cartesian product)."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from lamina.errors import SpecError, UsageError, nearest
from lamina.simulate.jobs import Settings, Value
from lamina.spec.faults import Faults, short
from lamina.spec.toml.lines import Lines

TABLES = ("base", "axes", "baseline")
MAX_CONFIGURATIONS = 100_000
"""Maximum number of configurations of a grid; more are taken for a mistake."""


@dataclass(frozen=True)
class Grid:
    """``base`` are the common settings. ``baseline``, if given, are the settings of the baseline."""

    name: str
    base: Settings
    axes: Mapping[str, tuple[Value, ...]]
    baseline: Settings | None = field(default=None)

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.axes.values())

    def configurations(self) -> Iterator[dict[str, Value]]:
        """All combinations in the order of the axes, the last axis varying fastest."""
        for values in product(*self.axes.values()):
            yield {**self.base, **dict(zip(self.axes, values, strict=True))}


def read_grid(path: Path) -> Grid:
    """The grid of a TOML file: ``name``, and the tables ``[base]``, ``[axes]`` and ``[baseline]``.

    Raises:
        UsageError: the file cannot be read.
        SpecError: all faults of the content.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise SpecError(str(path), f"expected UTF-8 text, got byte 0x{error.object[error.start]:02x}") from None
    return parse_grid(text, str(path), path.stem)


def parse_grid(text: str, source: str, name: str = "sweep") -> Grid:
    """The grid of a text; ``source`` is used in messages, ``name`` is the default name of the grid.

    Raises:
        SpecError: all faults of the content.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SpecError(source, f"expected TOML: {error}") from None
    except ValueError:  # Python refuses to convert numbers of thousands of digits
        raise SpecError(source, "expected TOML: a number is too long") from None
    return _Reading(document, Lines(text), Faults(source)).read(name)


class _Reading:
    """The state of reading one file."""

    def __init__(self, document: Mapping[str, Any], lines: Lines, faults: Faults):
        self.document, self.lines, self.faults = document, lines, faults

    def read(self, name: str) -> Grid:
        for key in self.document:
            if key not in (*TABLES, "name"):
                self._add(f"key {short(key)} is unknown: {nearest(key, (*TABLES, 'name'))}", key)
        title = self.document.get("name", name)
        if not isinstance(title, str) or not title:
            self._add(f"name = {short(title)}: expected a non-empty string", "name")
        base, axes = self._settings("base"), self._axes()
        baseline = self._settings("baseline") if "baseline" in self.document else None
        for key in base.keys() & axes.keys():
            self._add(f"{key}: is in [base] and in [axes]: keep only one of them", "axes", *key.split("."))
        for key in set(baseline or ()) & {"network", "layer", "batch"}:
            self._add(f"baseline.{key}: the baseline has the same workload: remove it", "baseline", key)
        if (count := math.prod(len(values) for values in axes.values())) > MAX_CONFIGURATIONS:
            self._add(f"expected at most {MAX_CONFIGURATIONS} configurations, got {count}: use shorter axes", "axes")
        self.faults.refuse()
        return Grid(title, base, axes, baseline)

    def _settings(self, table: str) -> dict[str, Value]:
        """The values of a table, by dotted name."""
        found: dict[str, Value] = {}
        for key, value in self._flat(table):
            if _plain(value):
                found[key] = value
            else:
                hint = ": to sweep it, put it into [axes]" if isinstance(value, list) else ""
                self._add(f"{key} = {short(value)}: expected one string, number or boolean{hint}", table, key)
        return found

    def _axes(self) -> dict[str, tuple[Value, ...]]:
        axes: dict[str, tuple[Value, ...]] = {}
        if "axes" not in self.document:
            self._add("there is no [axes]: expected a table of lists such as batch = [16, 32]")
        for key, values in self._flat("axes"):
            axes[key] = ()
            if not isinstance(values, list) or not values or not all(map(_plain, values)):
                self._add(f"{key} = {short(values)}: expected a list of strings, numbers or booleans", "axes", key)
            elif twice := [value for index, value in enumerate(values) if _among(value, values[:index])]:
                self._add(f"{key}: expected each value once, got {short(twice[0])} again", "axes", key)
            else:
                axes[key] = tuple(values)
        return axes

    def _flat(self, table: str) -> Iterator[tuple[str, Any]]:
        inside = self.document.get(table, {})
        if isinstance(inside, dict):
            yield from _dotted(inside)
        else:
            self._add(f"{table} = {short(inside)}: expected a table [{table}]", table)

    def _add(self, message: str, *path: str) -> None:
        parts = tuple(part for each in path for part in each.split("."))
        self.faults.add(message, self.lines.of(*parts))


def value_of(text: str) -> Value:
    """A TOML value; anything else is read as a string, so that quotes may be omitted."""
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = read["value"] if read.keys() == {"value"} else text
    return value if _plain(value) else text


def _dotted(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)


def _among(value: Value, others: list[Value]) -> bool:
    """Whether an equal value of the same type is in the list: 1, 1.0 and true differ."""
    return any(value == other and type(value) is type(other) for other in others)

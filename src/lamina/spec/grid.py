"""Grids of configurations: settings whose values are combined or advance together, and filters."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from lamina.errors import SpecError, UsageError, nearest
from lamina.spec.faults import Faults
from lamina.spec.grid_filter import Filter
from lamina.spec.toml.lines import Lines
from lamina.spec.validated import short

Value = str | int | float | bool
Settings = Mapping[str, Value]
"""Settings by their dotted names."""
Axes = Mapping[str, tuple[Value, ...]]
TABLES = ("base", "axes", "zip", "baseline")
KEYS = (*TABLES, "name", "verb", "filter", "seeds")
MAX_CONFIGURATIONS = 100_000
"""Maximum number of configurations of a grid before its filters; more are taken for a mistake."""


@dataclass(frozen=True)
class Grid:
    """Configurations of a verb.

    ``base`` are the common settings. The values of ``axes`` are combined (Cartesian product), also with the rows of
    each table of ``zips``, whose lists have one length and advance together, and with ``seeds``. Of these
    configurations, those remain that satisfy all ``filters``. ``baseline``, if given, are the settings of the baseline
    of a simulation.
    """

    name: str
    base: Settings
    axes: Axes
    baseline: Settings | None = field(default=None)
    verb: str = "simulate"
    zips: tuple[Axes, ...] = ()
    filters: tuple[Filter, ...] = ()
    seeds: tuple[int, ...] = ()

    def __len__(self) -> int:
        return sum(1 for _ in self.configurations()) if self.filters else self._combinations

    @property
    def swept(self) -> tuple[str, ...]:
        """Names of the settings that differ between configurations."""
        return (*self.axes, *(key for table in self.zips for key in table), *(("seed",) if self.seeds else ()))

    @property
    def first(self) -> dict[str, Value]:
        """The first value of every swept setting."""
        return next(self._rows(), {})

    def configurations(self) -> Iterator[dict[str, Value]]:
        """All combinations that satisfy the filters, in the order of the axes, the last one varying fastest."""
        for row in self._rows():
            settings = {**self.base, **row}
            if all(each.accepts(settings) for each in self.filters):
                yield settings

    def to_dict(self) -> dict[str, Any]:
        """What the grid is, for JSON."""
        found: dict[str, Any] = {
            "verb": self.verb,
            "base": dict(self.base),
            "axes": _listed(self.axes),
            "baseline": None if self.baseline is None else dict(self.baseline),
            "zip": [_listed(table) for table in self.zips],
            "filter": [each.text for each in self.filters],
            "seeds": list(self.seeds),
        }
        return {key: value for key, value in found.items() if value or key in ("base", "axes", "baseline")}

    @property
    def _combinations(self) -> int:
        lengths = [len(values) for values in self.axes.values()]
        lengths += [len(next(iter(table.values()))) for table in self.zips]
        return math.prod(lengths) * (len(self.seeds) or 1)

    def _rows(self) -> Iterator[dict[str, Value]]:
        """The swept settings of every combination."""
        parts: list[list[dict[str, Value]]] = [[{key: value} for value in values] for key, values in self.axes.items()]
        for table in self.zips:
            parts.append([dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)])
        if self.seeds:
            parts.append([{"seed": seed} for seed in self.seeds])
        for chosen in product(*parts):
            yield {key: value for each in chosen for key, value in each.items()}


def _listed(axes: Axes) -> dict[str, list[Value]]:
    return {key: list(values) for key, values in axes.items()}


def read_grid(path: Path) -> Grid:
    """The grid of a TOML file.

    It has ``name``, ``verb``, ``filter`` (a list of conditions) and ``seeds``, and the tables ``[base]``, ``[axes]``,
    ``[[zip]]`` and, of a simulation, ``[baseline]``.

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
            if key not in KEYS:
                self._add(f"key {short(key)} is unknown: {nearest(key, KEYS)}", key)
        title, verb = self._text("name", name), self._text("verb", "simulate")
        base, axes, zips = self._settings("base"), self._axes(), self._zips()
        baseline = self._settings("baseline") if "baseline" in self.document else None
        if baseline is not None and verb != "simulate":
            self._add(f"baseline: only simulations have one, this is a grid of {verb}: remove it", "baseline")
        for key in set(baseline or ()) & {"network", "layer", "batch"}:
            self._add(f"baseline.{key}: the baseline has the same workload: remove it", "baseline", key)
        seeds = self._seeds()
        if not (axes or zips or seeds or "axes" in self.document):
            self._add("there is no [axes]: expected a table of lists such as batch = [16, 32]")
        self._require_once(base, axes, zips, seeds)
        filters = self._filters({*base, *axes, *(key for table in zips for key in table), *(("seed",) * bool(seeds))})
        self.faults.refuse()
        grid = Grid(title, base, axes, baseline, verb, zips, filters, seeds)
        if (count := grid._combinations) > MAX_CONFIGURATIONS:
            self._add(f"expected at most {MAX_CONFIGURATIONS} configurations, got {count}: use shorter axes", "axes")
        else:
            self._try_filters(grid)
        self.faults.refuse()
        return grid

    def _text(self, key: str, default: str) -> str:
        text = self.document.get(key, default)
        if not isinstance(text, str) or not text:
            self._add(f"{key} = {short(text)}: expected a non-empty string", key)
        return str(text)

    def _require_once(self, base: Settings, axes: Axes, zips: tuple[Axes, ...], seeds: tuple[int, ...]) -> None:
        """Refuse settings that are in two tables."""
        tables = [("[base]", base), ("[axes]", axes), *(("[[zip]]", table) for table in zips)]
        tables.append(("seeds", {"seed": 0} if seeds else {}))
        seen: dict[str, str] = {}
        for name, table in tables:
            for key in table:
                if key in seen:
                    path = {"[axes]": ("axes", key), "[base]": ("base", key)}.get(name, (name.strip("[]"),))
                    self._add(f"{key}: is in {seen[key]} and in {name}: keep only one of them", *path)
                seen.setdefault(key, name)

    def _zips(self) -> tuple[Axes, ...]:
        tables = self.document.get("zip", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self._add(f"zip = {short(tables)}: expected tables [[zip]] of lists of one length", "zip")
            return ()
        return tuple(zipped for table in tables if (zipped := self._zip(table)))

    def _zip(self, table: Mapping[str, Any]) -> Axes:
        lists = dict(_dotted(table))
        if not all(isinstance(values, list) and values and all(map(_plain, values)) for values in lists.values()):
            self._add(f"zip = {short(table)}: expected lists of strings, numbers or booleans", "zip")
            return {}
        if len(lengths := {len(values) for values in lists.values()}) != 1:
            self._add(f"zip: expected lists of one length, got {sorted(lengths) or 'none'}", "zip")
            return {}
        return {key: tuple(values) for key, values in lists.items()}

    def _seeds(self) -> tuple[int, ...]:
        seeds = self.document.get("seeds", [])
        good = isinstance(seeds, list) and all(type(seed) is int and seed >= 0 for seed in seeds)
        if not good or len(set(seeds)) != len(seeds) or ("seeds" in self.document and not seeds):
            self._add(f"seeds = {short(seeds)}: expected a list of different whole numbers, 0 or more", "seeds")
            return ()
        return tuple(seeds)

    def _filters(self, known: set[str]) -> tuple[Filter, ...]:
        texts = self.document.get("filter", [])
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            self._add(f"filter = {short(texts)}: expected a list of strings such as 'batch_size * 3 < 1000'", "filter")
            return ()
        filters = []
        for text in texts:
            try:
                made = Filter(text)
            except (ValueError, RecursionError) as error:
                self._add(f"filter {short(text)}: {error}", "filter")
                continue
            for name in sorted(made.names - known):
                self._add(f"filter {short(text)}: setting {name!r} is unknown: {nearest(name, known)}", "filter")
            filters.append(made)
        return tuple(filters)

    def _try_filters(self, grid: Grid) -> None:
        """Refuse filters that cannot be evaluated, or that leave nothing."""
        left = False
        for settings in grid._rows():
            for each in grid.filters:
                try:
                    if not each.accepts({**grid.base, **settings}):
                        break
                except ValueError as error:
                    self._add(f"filter {short(each.text)}: {error}", "filter")
                    return
            else:
                left = True
        if not left:
            self._add("filter: no configuration satisfies all filters: remove one", "filter")

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

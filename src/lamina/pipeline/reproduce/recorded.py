"""Measurements that the package ships: rows of benchmarks/results, with where they come from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from lamina.errors import UsageError, nearest

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Recorded:
    """Rows of one results file, with its provenance."""

    name: str
    source: str
    provenance: Mapping[str, str]
    rows: tuple[Row, ...]


def label(extracts: Iterable[Recorded], how: str = "recorded") -> str:
    """On which devices, when, and from which commits rows were measured."""
    by_device: dict[str, list[str]] = {}
    for one in extracts:
        of = one.provenance
        by_device.setdefault(of["device"], []).append(f"{of['date'][:10]} at commit {of['commit'][:7]}")
    return "; ".join(f"{how} on {device}, {', '.join(dict.fromkeys(each))}" for device, each in by_device.items())


def names() -> tuple[str, ...]:
    """The names of all shipped extracts."""
    return tuple(sorted(each.name.removesuffix(".json") for each in _folder().iterdir() if each.name.endswith(".json")))


@cache
def recorded(name: str) -> Recorded:
    """The extract of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in names():
        raise UsageError(f"there are no recorded rows {name!r}: {nearest(name, names())}")
    document = json.loads((_folder() / f"{name}.json").read_text(encoding="utf-8"))
    columns = document["columns"]
    rows = tuple(dict(zip(columns, row, strict=True)) for row in document["rows"])
    return Recorded(name, document["source"], document["provenance"], rows)


def _folder() -> Any:
    return files("lamina.recipes") / "papers" / "recorded"

"""Measurements that the package ships: rows of benchmarks/results, with where they come from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from lamina.errors import UsageError, nearest

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Recorded:
    """Rows of one results file. ``label`` says on which device, when, and from which commit they were measured."""

    name: str
    source: str
    provenance: Mapping[str, str]
    rows: tuple[Row, ...]

    @property
    def label(self) -> str:
        of = self.provenance
        return f"recorded on {of['device']}, {of['date'][:10]}, commit {of['commit'][:12]}"


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

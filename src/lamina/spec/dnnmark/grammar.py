"""The grammar: sections in square brackets, one ``key=value`` per line, comment lines starting with ``#``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from lamina.errors import nearest
from lamina.spec.dnnmark.template import Line, Unset, no_effect
from lamina.spec.faults import Faults
from lamina.spec.validated import LONGEST, short

GENERAL = "DNNMark"
BLANK = " \t\n\v\f\r"
"""C's whitespace, which DNNMark strips from lines, keys and values."""
LISTED = 8
"""Line numbers listed in one warning."""


class Warnings:
    """Warnings about a file, each with the lines that it applies to."""

    def __init__(self) -> None:
        self._lines: dict[str, list[int]] = {}

    def add(self, warning: str, line: int) -> None:
        """Add a warning for a line."""
        self._lines.setdefault(warning, []).append(line)

    def __iter__(self) -> Iterator[str]:
        for warning, numbers in self._lines.items():
            numbers = sorted(set(numbers))
            more = f" and {len(numbers) - LISTED} more" if len(numbers) > LISTED else ""
            shown = ", ".join(map(str, numbers[:LISTED]))
            yield f"{warning} (line{'s' if len(numbers) > 1 else ''} {shown}{more})"


class Entry(NamedTuple):
    """One setting as written; ``unset`` names the variables in it that have no value."""

    key: str
    value: str
    line: int
    unset: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """One layer of the file: its section name and its settings, in order."""

    name: str
    line: int
    entries: list[Entry] = field(default_factory=list)


def parse(
    lines: Iterable[Line], known: Iterable[str], unset: Unset, faults: Faults, warnings: Warnings
) -> tuple[Section, list[Section]]:
    """The general section, and those of the layers, unknown ones included.

    DNNMark ignores text before the first section, and a general section after the first layer.
    """
    names = {f"[{name}]" for name in known}
    general, layers = Section(GENERAL, 1), list[Section]()
    here: Section | None = None
    skipping = False
    for number, raw, missing in lines:
        line = raw.strip(BLANK)
        if not line or line[0] == "#":
            continue
        if line == f"[{GENERAL}]":
            skipping = bool(layers)
            if skipping:
                warnings.add(f"[{GENERAL}] after the first layer has no effect", number)
            else:
                general = Section(GENERAL, number, general.entries)
            here = general
        elif missing and (here is None or skipping):
            warnings.add(no_effect(missing, "text that is not read"), number)
        elif missing and "=" not in line:
            unset.need(missing, number)
        elif line[0] == "[" and line[-1] == "]":
            if line not in names:
                faults.add(partial(_unknown_section, line, names), number)
            here, skipping = Section(line[1:-1], number), False
            layers.append(here)
        elif here is None:
            warnings.add("text before the first section has no effect", number)
        elif not skipping:
            key, equals, value = (part.strip(BLANK) for part in line.partition("="))
            if equals:
                here.entries.append(Entry(key, value, number, missing))
            else:
                faults.add(f"expected key=value, got {short(line)}", number)
    return general, layers


def _unknown_section(line: str, known: Iterable[str]) -> str:
    hint = nearest(line[:LONGEST], (f"[{GENERAL}]", *known))
    return f"section {short(line)} is unknown (case-sensitive): {hint}"

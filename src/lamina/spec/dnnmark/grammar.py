"""The grammar: sections in square brackets, one ``key=value`` to a line, ``#`` first for a comment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from lamina.errors import nearest
from lamina.spec.dnnmark.template import Line
from lamina.spec.faults import LONGEST, Faults, short

GENERAL = "DNNMark"
BLANK = " \t\n\v\f\r"
"""What C calls white space, which DNNMark trims from lines, keys and values."""
LISTED = 8
"""Line numbers that one remark lists."""


class Remarks:
    """Facts about a file worth knowing, each told once with the lines it holds for."""

    def __init__(self) -> None:
        self._lines: dict[str, list[int]] = {}

    def add(self, remark: str, line: int) -> None:
        """Note that ``remark`` holds for ``line``."""
        self._lines.setdefault(remark, []).append(line)

    def __iter__(self) -> Iterator[str]:
        for remark, numbers in self._lines.items():
            numbers = sorted(set(numbers))
            more = f" and {len(numbers) - LISTED} more" if len(numbers) > LISTED else ""
            shown = ", ".join(map(str, numbers[:LISTED]))
            yield f"{remark} (line{'s' if len(numbers) > 1 else ''} {shown}{more})"


@dataclass(frozen=True)
class Section:
    """One layer of the file: its kind and its settings as written, in their order."""

    name: str
    line: int
    entries: list[tuple[str, str, int]] = field(default_factory=list)
    """Key, value, line."""


def parse(
    lines: Iterable[Line], known: Iterable[str], faults: Faults, remarks: Remarks
) -> tuple[Section, list[Section]]:
    """The general section, and those of the layers, unknown ones among them.

    DNNMark skips what stands before the first section, and a general section after the first layer.
    """
    names = {f"[{name}]" for name in known}
    general, layers = Section(GENERAL, 1), list[Section]()
    here: Section | None = None
    skipping = False
    for number, raw in lines:
        line = raw.strip(BLANK)
        if not line or line[0] == "#":
            continue
        if line == f"[{GENERAL}]":
            skipping = bool(layers)
            if skipping:
                remarks.add(f"[{GENERAL}] after the first layer has no effect", number)
            else:
                general = Section(GENERAL, number, general.entries)
            here = general
        elif line[0] == "[" and line[-1] == "]":
            if line not in names:
                faults.add(partial(_unknown_section, line, names), number)
            here, skipping = Section(line[1:-1], number), False
            layers.append(here)
        elif here is None:
            remarks.add("text before the first section has no effect", number)
        elif not skipping:
            key, equals, value = (part.strip(BLANK) for part in line.partition("="))
            if equals:
                here.entries.append((key, value, number))
            else:
                faults.add(f"expected key=value, got {short(line)}", number)
    return general, layers


def _unknown_section(line: str, known: Iterable[str]) -> str:
    hint = nearest(line[:LONGEST], (f"[{GENERAL}]", *known))
    return f"section {short(line)} is unknown (capitals count): {hint}"

"""Templates: variables ``$NAME`` and ``${NAME}`` in a file, set on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lamina.errors import nearest
from lamina.spec.faults import Faults
from lamina.spec.validated import LONGEST

_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)\}|(?P<bare>\w+))", re.ASCII)


class Line(NamedTuple):
    """A line of the file; variables without a value stay as written, and ``unset`` names them."""

    number: int
    text: str
    unset: tuple[str, ...] = ()


def expand(text: str, variables: Mapping[str, str], faults: Faults) -> Iterable[Line]:
    """The lines of the file with variables substituted, except in comments.

    A value may have several lines: they all get the number of the line with the variable.
    """
    used: set[str] = set()
    unset: list[str] = []

    def value(match: re.Match[str]) -> str:
        name = match["braced"] or match["bare"]
        used.add(name)
        if name not in variables:
            unset.append(name)
        return variables.get(name, match[0])

    lines: list[Line] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if "$" not in line or line.lstrip().startswith("#"):
            lines.append(Line(number, line))
        else:
            unset.clear()
            parts = _VARIABLE.sub(value, line).split("\n")
            lines += [Line(number, part, tuple(unset) if "$" in part else ()) for part in parts]
    for name in sorted(set(variables) - used):
        faults.add(f"--set {name}: {_unknown(name, used)}")
    return lines


class Unset:
    """Variables without a value: each is a fault at its first line where it has an effect."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.needed: set[str] = set()

    def need(self, names: Iterable[str], line: int) -> None:
        """Report the variables of a line that has an effect."""
        for name in names:
            if name not in self.needed:
                self.needed.add(name)
                cut = name[:LONGEST]
                how = f"set it (an empty value is allowed) with --set {cut}=..."
                self._faults.add(f"variable {cut} has no value: {how}", line)


def no_effect(names: Iterable[str], what: str) -> str:
    """The warning about variables without a value in a line that has no effect."""
    listed = ", ".join(name[:LONGEST] for name in dict.fromkeys(names))
    return f"variable {listed} has no value, which has no effect: {what}"


def _unknown(name: str, used: set[str]) -> str:
    return f"the file has no variable ${name}: {nearest(name, used)}" if used else "the file has no variables"

"""Templates: variables ``$NAME`` and ``${NAME}`` in a file, set on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from lamina.errors import nearest
from lamina.spec.faults import LONGEST, Faults

_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)\}|(?P<bare>\w+))", re.ASCII)

Line = tuple[int, str]


def expand(text: str, variables: Mapping[str, str], faults: Faults) -> Iterable[Line]:
    """The numbered lines of the file with variables substituted, except in comments.

    A value may have several lines: they all get the number of the line with the variable.
    """
    missing: dict[str, int] = {}
    used: set[str] = set()

    def value(match: re.Match[str]) -> str:
        name = match["braced"] or match["bare"]
        used.add(name)
        if name not in variables:
            missing.setdefault(name, number)
        return variables.get(name, "")

    if "$" not in text and not variables:
        return enumerate(text.split("\n"), start=1)
    lines: list[Line] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if "$" not in line or line.lstrip().startswith("#"):
            lines.append((number, line))
        else:
            lines += [(number, part) for part in _VARIABLE.sub(value, line).split("\n")]
    for name, first in missing.items():
        cut = name[:LONGEST]
        faults.add(f"variable {cut} has no value: set it (an empty value is allowed) with --set {cut}=...", first)
    for name in sorted(set(variables) - used):
        faults.add(f"--set {name}: {_unknown(name, used)}")
    return lines


def _unknown(name: str, used: set[str]) -> str:
    return f"the file has no variable ${name}: {nearest(name, used)}" if used else "the file has no variables"

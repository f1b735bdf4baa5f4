"""On which line a table or key of a TOML file stands: the standard library's reader does not say."""

from __future__ import annotations

import re
from collections import Counter

Place = tuple[str | int, ...]
"""Keys and array positions from the top of the file: ``("layer", 2, "kernel")``."""

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_PATH = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\s*(?P<array>\[)?\[\s*(?P<path>{_PATH})\s*\]")
_SETTING = re.compile(rf"\s*(?P<path>{_PATH})\s*=")
_QUOTES = re.compile(r"\"\"\"|'''")


class Lines:
    """First lines of the tables and keys of a file that is valid TOML."""

    def __init__(self, text: str):
        self._lines: dict[Place, int] = {}
        here: Place = ()
        arrays: Counter[Place] = Counter()
        quoted = False
        for number, line in enumerate(text.split("\n"), start=1):
            if not quoted and (header := _HEADER.match(line)):
                here = _parts(header["path"])
                if header["array"]:
                    arrays[here] += 1
                    here = (*here, arrays[here] - 1)
                self._lines.setdefault(here, number)
            elif not quoted and (setting := _SETTING.match(line)):
                self._lines.setdefault((*here, *_parts(setting["path"])), number)
            quoted ^= len(_QUOTES.findall(line)) % 2 == 1

    def of(self, *place: str | int) -> int | None:
        """The line of a key; where it has none, that of the table it belongs to."""
        while place and place not in self._lines:
            place = place[:-1]
        return self._lines.get(place)


def _parts(path: str) -> Place:
    return tuple(part.strip("\"'") for part in re.findall(_PART, path))

"""Line numbers of tables and keys in TOML files, which ``tomllib`` does not provide."""

from __future__ import annotations

import re
from collections import Counter

Path = tuple[str | int, ...]
"""Keys and array indices from the root: ``("layer", 2, "kernel")``."""

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_PATH = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\s*(?P<array>\[)?\[\s*(?P<path>{_PATH})\s*\]")
_SETTING = re.compile(rf"\s*(?P<path>{_PATH})\s*=")
_QUOTES = re.compile(r"\"\"\"|'''")


class Lines:
    """First lines of the tables and keys of a valid TOML file."""

    def __init__(self, text: str):
        self._lines: dict[Path, int] = {}
        here: Path = ()
        arrays: Counter[Path] = Counter()
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

    def of(self, *path: str | int) -> int | None:
        """The line of a key, or that of its table if the key is absent."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path)


def _parts(path: str) -> Path:
    return tuple(part.strip("\"'") for part in re.findall(_PART, path))

"""Layers of a network by patterns of their names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from lamina.errors import UsageError, nearest


def matching_layers(patterns: Sequence[str], names: Iterable[str]) -> list[str]:
    """The names that match any of the patterns, in their order; all names without patterns.

    ``*`` matches any text, dots as well, ``?`` one character, ``[0-3]`` one of a range.

    >>> matching_layers(["blocks.*.norm", "head"], ["stem", "blocks.0.norm", "blocks.0.fc", "blocks.1.norm", "head"])
    ['blocks.0.norm', 'blocks.1.norm', 'head']

    Raises:
        UsageError: a pattern matches no name; with the nearest one.
    """
    known = list(dict.fromkeys(names))
    if not patterns:
        return known
    for pattern in patterns:
        if not any(_matches(name, pattern) for name in known):
            raise UsageError(f"layer pattern {pattern!r} matches no layer: {nearest(pattern, known)}")
    return [name for name in known if any(_matches(name, pattern) for pattern in patterns)]


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)

"""Layers that repeat: ``stages.0.blocks.1.norm`` and ``stages.2.blocks.5.norm`` are ``stages.*.blocks.*.norm``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"\d+")


def patterns(layers: Iterable[str]) -> dict[str, list[str]]:
    """The layers that share each pattern, in order of first appearance; a layer that does not repeat is its own.

    Names repeat if they differ only in numbers before the last dot: the last component tells the layers of a block
    apart. A number on which all names agree stays.

    >>> patterns(["stem.0", "stages.2.blocks.0.norm", "stages.2.blocks.1.norm"])
    {'stem.0': ['stem.0'], 'stages.2.blocks.*.norm': ['stages.2.blocks.0.norm', 'stages.2.blocks.1.norm']}
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for layer in dict.fromkeys(layers):
        path, dot, last = layer.rpartition(".")
        groups.setdefault((_NUMBER.sub("*", path), dot + last), []).append(layer)
    return {pattern_of(members): members for members in groups.values()}


def pattern_of(layers: Sequence[str]) -> str:
    """The pattern of names that differ only in numbers of their paths."""
    path, dot, last = layers[0].rpartition(".")
    numbers = zip(*(_NUMBER.findall(layer.rpartition(".")[0]) for layer in layers), strict=True)
    shown = iter([found[0] if len(set(found)) == 1 else "*" for found in numbers])
    return _NUMBER.sub(lambda _: next(shown), path) + dot + last


def repeated(pattern: str, layers: Sequence[str]) -> str:
    """A pattern with the number of its layers; a single layer's name as it is.

    >>> repeated("blocks.*.norm", ["blocks.0.norm", "blocks.1.norm"]), repeated("head", ["head"])
    ('blocks.*.norm (2 layers)', 'head')
    """
    return f"{pattern} ({len(layers)} layers)" if len(layers) > 1 else pattern

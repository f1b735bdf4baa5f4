"""Entries of the sparsity information block, and the three searches over them (Dong 2020, algorithms 4 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lamina.errors import UsageError
from lamina.simulate.compaction_engine.config import VALUES_PER_LINE


@dataclass(frozen=True)
class Mapping:
    """Mapping of a compacted line: the number of further lines with values, and its end offset in the last one."""

    needed: int
    offset: int


@dataclass(frozen=True)
class Profile:
    """Sparsity of a column: a bit per line of memory, set if it has a value, and the mappings of compacted lines."""

    bits: tuple[bool, ...]
    mappings: tuple[Mapping, ...]


@dataclass(frozen=True)
class Found:
    """Lines of memory to fetch, and the number of search steps."""

    lines: tuple[int, ...]
    steps: int


def profile(column: NDArray[np.bool_], per_line: int = VALUES_PER_LINE) -> Profile:
    """The entry of a column after the compaction units have processed all of it."""
    rows = np.flatnonzero(column)
    bits = tuple(bool(column[i : i + VALUES_PER_LINE].any()) for i in range(0, len(column), VALUES_PER_LINE))
    mappings, seen = [], -1
    for end in range(per_line, len(rows) + per_line, per_line):
        row = int(rows[min(end, len(rows)) - 1])
        mappings.append(Mapping(sum(bits[seen + 1 : row // VALUES_PER_LINE + 1]), row % VALUES_PER_LINE))
        seen = row // VALUES_PER_LINE
    return Profile(bits, tuple(mappings))


def accurate(bits: Sequence[bool], mappings: Sequence[Mapping], index: int) -> Found:
    """The further lines of compacted line ``index``: one step per previous mapping and one per line.

    Raises:
        UsageError: there is no such mapping.
    """
    if not 0 <= index < len(mappings):
        raise UsageError(f"mapping {index}: expected 0 to {len(mappings) - 1}; search without it")
    passed = sum(each.needed for each in mappings[:index])
    lines = _set(bits)[passed : passed + mappings[index].needed]
    return Found(lines, index + len(lines))


def prudent(bits: Sequence[bool], length: int, start: int = 0) -> Found:
    """The first ``length`` lines with values, from ``start``."""
    lines = tuple(line for line in _set(bits) if line >= start)[:length]
    return Found(lines, len(lines))


def hasty(lines: int, length: int, start: int = 0) -> Found:
    """The first ``length`` lines of a column of ``lines``, from ``start``."""
    found = tuple(range(start, min(start + length, lines)))
    return Found(found, len(found))


def _set(bits: Sequence[bool]) -> tuple[int, ...]:
    return tuple(line for line, bit in enumerate(bits) if bit)

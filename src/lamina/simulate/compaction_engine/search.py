"""An entry of the sparsity information block, and the three searches over it (Dong 2020, algorithms 4 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lamina.errors import UsageError
from lamina.simulate.compaction_engine.config import LANES


@dataclass(frozen=True)
class Mapping:
    """Of one compacted line: how many further lines with values it needs, and where in the last one it ends."""

    needed: int
    offset: int


@dataclass(frozen=True)
class Profile:
    """One column's sparsity: a bit for each line of memory, set where there is a value; compacted lines in order."""

    bits: tuple[bool, ...]
    mappings: tuple[Mapping, ...]


@dataclass(frozen=True)
class Found:
    """Lines of memory to fetch, and the steps that it took to find them."""

    lines: tuple[int, ...]
    steps: int


def profile(column: NDArray[np.bool_], per_line: int = LANES) -> Profile:
    """The entry of a column, all of which the compaction units have seen."""
    rows = np.flatnonzero(column)
    bits = tuple(bool(column[i : i + LANES].any()) for i in range(0, len(column), LANES))
    mappings, seen = [], -1
    for end in range(per_line, len(rows) + per_line, per_line):
        row = int(rows[min(end, len(rows)) - 1])
        mappings.append(Mapping(sum(bits[seen + 1 : row // LANES + 1]), row % LANES))
        seen = row // LANES
    return Profile(bits, tuple(mappings))


def accurate(bits: Sequence[bool], mappings: Sequence[Mapping], index: int) -> Found:
    """The further lines that the compacted line ``index`` needs: a step over each mapping before, one for each line.

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

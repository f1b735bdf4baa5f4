"""How threads are laid over a product of block spectra, and what that says about reuse and memory distance.

Axes: ``n`` rows of the batch, ``p`` blocks of outputs, ``q`` blocks of inputs, ``f`` the numbers of one block. Table
7.2 and algorithms 6 to 9 of the dissertation, with three readings of what they leave open:

- Its grids of ``(M - N + 1) / N`` blocks would leave a last part of an axis out, so division is meant to round up.
- O1 gives a thread block ``N`` threads and ``M1 / N`` blocks along the summed axis, so its threads sweep over ``N``
  chunks, side by side in memory.
- Kernel fusion is built as algorithm 9 has it, ``k'`` threads along x; section 7.5.2 speaks of ``k' M``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

Phase = Literal["forward", "backward_data", "backward_weight"]
Axes = tuple[str, ...]
"""The layout of a tensor: its axes, the one that is contiguous last."""

LIMIT = 1024
"""Threads that a block may have."""

ROLES: dict[Phase, tuple[str, str, str]] = {
    "forward": ("q", "p", "n"),
    "backward_data": ("p", "q", "n"),
    "backward_weight": ("n", "q", "p"),
}
"""Of each phase M1, along which products are summed, and M2 and M3, the axes of its result."""

NATURAL: dict[Phase, tuple[Axes, Axes]] = {
    "forward": (("n", "q", "f"), ("p", "q", "f")),
    "backward_data": (("n", "p", "f"), ("p", "q", "f")),
    "backward_weight": (("n", "p", "f"), ("n", "q", "f")),
}
"""The two factors of each phase as they are stored: the first lacks M2, so threads along M2 share it."""


@dataclass(frozen=True)
class Sizes:
    """``n`` rows, ``p`` by ``q`` blocks, ``f`` numbers in a block or in its spectrum."""

    n: int
    p: int
    q: int
    f: int

    def __getitem__(self, axis: str) -> int:
        return int(getattr(self, axis))

    def strides(self, layout: Axes) -> dict[str, int]:
        """Numbers between neighbours along each axis of a contiguous tensor."""
        return {axis: prod(self[inner] for inner in layout[place + 1 :]) for place, axis in enumerate(layout)}


@dataclass(frozen=True)
class Mapping:
    """A kernel's launch. ``covers`` is how far one thread block reaches along an axis, ``threads`` how many it has
    along it; both are 1 where they say nothing. ``shared`` is in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    covers: dict[str, int]
    threads: dict[str, int]
    shared: int = 0


def reuse(mapping: Mapping, layout: Axes) -> int:
    """DR: how many threads of a block use the same number of a tensor, at most."""
    return prod(count for axis, count in mapping.threads.items() if axis not in layout)


def distance(mapping: Mapping, layout: Axes, sizes: Sizes) -> float:
    """MD: the range of a tensor's addresses that a thread block touches, over its threads; 1 is ideal."""
    reach = sum((mapping.covers.get(axis, 1) - 1) * stride for axis, stride in sizes.strides(layout).items())
    return (reach + 1) / prod(mapping.block)


def table_multiply(phase: Phase, sizes: Sizes, limit: int = LIMIT) -> Mapping:
    """Table 7.2: a thread block for each pair of chunks."""
    return Mapping((sizes.q, sizes.p, sizes.n), (sizes.f, 1, 1), {"f": sizes.f}, {"f": sizes.f})


def table_sum(phase: Phase, sizes: Sizes, limit: int = LIMIT) -> Mapping:
    """Table 7.2 and algorithm 8: a thread block for each chunk of the result."""
    m1, m2, m3 = ROLES[phase]
    return Mapping((sizes[m2], sizes[m3], 1), (sizes.f, 1, 1), {"f": sizes.f, m1: sizes[m1]}, {"f": sizes.f})


def o1(phase: Phase, sizes: Sizes, limit: int = LIMIT) -> Mapping:
    """Algorithm 6: occupancy first. Full warps along x, and as many rows as a thread block may have."""
    m1, m2, m3 = ROLES[phase]
    k = 2 * (sizes.f - 1)
    width = 32 if k < 32 else k
    rows = limit // width
    chunks = min(width, sizes[m1])
    return Mapping(
        (_parts(sizes[m1], width), _parts(sizes[m2], rows), sizes[m3]), (width, rows, 1),
        {"f": sizes.f, m1: chunks, m2: min(rows, sizes[m2])}, {"f": width, m2: min(rows, sizes[m2])},
        chunks * sizes.f * 8,
    )  # fmt: skip


def o2(phase: Phase, sizes: Sizes, limit: int = LIMIT) -> Mapping:
    """Algorithm 7: reuse first. One chunk along x, and 1024 / k rows that share it."""
    m1, m2, m3 = ROLES[phase]
    rows = _rows(sizes, limit)
    some = min(rows, sizes[m2])
    return Mapping(
        (sizes[m1], _parts(sizes[m2], rows), sizes[m3]), (sizes.f, rows, 1),
        {"f": sizes.f, m2: some}, {"f": sizes.f, m2: some}, sizes.f * 8,
    )  # fmt: skip


def fusion(phase: Phase, sizes: Sizes, limit: int = LIMIT) -> Mapping:
    """Algorithm 9: O2 without the summed axis, along which each thread goes itself."""
    m1, m2, m3 = ROLES[phase]
    rows = _rows(sizes, limit)
    some = min(rows, sizes[m2])
    return Mapping(
        (1, _parts(sizes[m2], rows), sizes[m3]), (sizes.f, rows, 1),
        {"f": sizes.f, m2: some, m1: sizes[m1]}, {"f": sizes.f, m2: some}, sizes.f * rows * 8,
    )  # fmt: skip


def _rows(sizes: Sizes, limit: int) -> int:
    return max(1, limit // (2 * (sizes.f - 1)))


def _parts(total: int, part: int) -> int:
    return -(-total // part)

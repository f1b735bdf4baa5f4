"""Matrix products on the engine as phase programs: the sparse one by columns, the dense one by packed panels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from lamina.errors import UsageError
from lamina.simulate.compaction_engine.config import VALUES_PER_LINE, Engine, engine_timing
from lamina.simulate.compaction_engine.reference import MARK, Region
from lamina.simulate.compaction_engine.stream import Layout, Mask, kept, layout
from lamina.simulate.hierarchy import Device, Phase, Program, gemm
from lamina.simulate.hierarchy.config import LINE
from lamina.simulate.hierarchy.gemm import PAGE, TILE
from lamina.simulate.hierarchy.program import END, LDS, LOAD, SKIPPED, STORE, VALU, WAIT, aligned, occupancy
from lamina.simulate.jobs import Options

PLAIN = 2
"""The mark of the sparse kernel's other loads, which bypass the engine."""
WAVE = 64
LINES_AT_ONCE = 32
LOADS_AT_ONCE = 4
"""Loads of A that a wavefront has in flight before it waits, limited by its registers."""
DENSE_INSTRUCTIONS = (74, 64)
"""Vector instructions of the dense kernel's inner loop, and how many of them are multiply-adds."""
UNPACK, ADDRESS = 3, 2
"""Vector instructions to unpack an entry and compute the address of its row of A."""
PRODUCTS_PER_LDS = 8
WIDTHS = (16, 8, 4, 2)
MOST_INDICES = 2**29
PIECE = 32
"""fp32 values in 128 bytes, the bank or channel interleave of most devices."""


class Kernel(Options):
    """The sparse kernel: a workgroup computes ``tile_rows`` x ``tile_columns`` of C, with one lane per row.

    Tile size, order and the reuse of A are not published; their defaults are our choice.
    """

    tile_rows: Literal[16, 32, 64] = 64
    tile_columns: Annotated[int, Field(ge=1, le=32, strict=True)] = 8
    order: Literal["columns", "rows"] = "columns"
    """Order of workgroups: ``columns`` as in the dense kernel; with ``rows``, adjacent ones share columns of B."""
    weights: Literal["column", "tile"] = "column"
    """The loaded values of A: those that each column selects, or, as in the published listing, one tile for
    all columns, which is correct only if they have the same zeros."""
    padded: Annotated[bool, Field(strict=True)] = True
    """Pad the columns of A and C to an odd multiple of 128 bytes: with power-of-two pitches, a tile's rows are in few
    banks and channels, and the others are idle."""


@dataclass(frozen=True)
class Workload:
    """A program, and the matrix that its extended loads read."""

    program: Program
    layout: Layout
    region: Region


def sparse_gemm(
    m: int, n: int, mask: Mask, engine: Engine, kernel: Kernel | None = None, *, skip: bool = True
) -> Workload:
    """C[m, n] = A[m, k] B[k, n], with B delivered by the engine, A and C in column-major order.

    An iteration processes one delivered line of each column of the tile, until all have ended; shorter columns are
    padded with zeros. ``skip=False`` multiplies every row although the engine delivers fewer.

    Args:
        m, n: rows of A and columns of B; rounded up to whole tiles.
        mask: non-zeros of B: [k, columns]; further columns repeat them.
        engine: the engine that delivers B.
        kernel: tile size and order.
        skip: multiply only delivered values.

    Raises:
        UsageError: a size is not positive, or the mask has too many values for the tables.
    """
    kernel = kernel or Kernel()
    if m < 1 or n < 1:
        raise UsageError(f"m = {m}, n = {n}: expected positive sizes")
    wide, high, per_line = kernel.tile_columns, kernel.tile_rows, engine.entries_per_line
    if mask.ndim == 2 and mask.size:
        mask = mask[:, np.arange(min(aligned(mask.shape[1], wide), aligned(n, wide))) % mask.shape[1]]
    made = layout(mask, engine)
    tiles, rows = aligned(n, wide) // wide, aligned(m, high) // high
    height = _height(m, kernel)
    pitch = LINE * max(made.lines, -(-made.lines * VALUES_PER_LINE // per_line))
    b = aligned(4 * height * made.lines * VALUES_PER_LINE, PAGE)
    c = b + aligned(tiles * wide * pitch, PAGE)
    arguments = c + aligned(4 * height * tiles * wide, PAGE)
    indices, starts, trips = _indices(mask, made, engine, wide, skip)
    period = np.arange(rows * tiles) % tiles if kernel.order == "columns" else np.arange(rows * tiles) // rows
    period %= len(trips)
    loop = tuple(_pass(kernel, engine, b, pitch, height))
    before: tuple[Phase, ...] = (
        Phase(VALU, 40, scalar=30),
        Phase(LOAD, 1, base=arguments, rows=1, lines=1, mark=PLAIN),
        Phase(WAIT, 1),
    )
    after = (*_stores(kernel, c, height), Phase(WAIT, 1), Phase(END, 1))
    if kernel.order == "rows":
        before, loop, after = (tuple(map(_turned, phases)) for phases in (before, loop, after))
    program = Program(
        name=f"sparse-gemm[{m},{n},{mask.shape[0]}]",
        before=before,
        loop=loop,
        after=after,
        rows=rows if kernel.order == "columns" else tiles,
        columns=tiles if kernel.order == "columns" else rows,
        trips=trips[period],
        bytes=arguments + PAGE,
        instructions_per_workgroup=_instructions((*before, *after)),
        instructions_per_trip=_instructions(loop),
        registers=76,
        lds_bytes=4096,
        indices=indices,
        gathers=starts[period],
    )
    return Workload(program, made, Region(b, pitch, pitch))


def fitting(rows: int, engine: Engine, device: Device) -> int:
    """The largest number of tile columns, 1 to 16, for which all columns in progress fit in the information block. With
    more, entries are evicted before they are used, and columns are searched again.

    Raises:
        UsageError, SpecError: the kernel does not fit on the device, or the columns do not fit in the engine.
    """
    program = sparse_gemm(1, 1, np.ones((rows, 1), dtype=np.bool_), engine).program
    timing = engine_timing(engine, rows)
    room = timing.sets * timing.ways // (occupancy(program, device) * device.cu.count)
    return next((wide for wide in WIDTHS if wide <= room), 1)


def packed_gemm(m: int, n: int, k: int, engine: Engine) -> Workload:
    """The dense kernel (``gemm``, corrected) on an engine without compaction: with fp16, prefetching, or neither.

    B is packed in panels of 32 columns, so that an iteration continues where the last one ended.

    Raises:
        SpecError: a dimension is not a positive multiple of 32.
        UsageError: the engine removes zeros.
    """
    if engine.compaction:
        raise UsageError("the dense kernel multiplies every value: expected an engine with compaction = false")
    program = gemm(m, n, k, "corrected")
    b = aligned(4 * m * k, PAGE)
    row = 2 * TILE if engine.narrow else 4 * TILE
    unpack = 4 if engine.narrow else 0

    def packed(phase: Phase) -> Phase:
        if phase.kind == VALU and phase.count == DENSE_INSTRUCTIONS[0]:
            return replace(phase, count=phase.count + 4 * unpack)
        if phase.kind == LOAD and phase.per_column != 4 * TILE:
            return replace(phase, mark=PLAIN)
        if phase.kind != LOAD:
            return phase
        own = (phase.base - b) // (4 * n)
        return replace(
            phase, base=b + own * row, per_column=4 * TILE * k, per_trip=TILE * row, lines=row // LINE, mark=MARK
        )

    before, loop = (tuple(map(packed, phases)) for phases in (program.before, program.loop))
    more = _instructions(loop) - _instructions(program.loop)
    whole = layout(np.ones((TILE * k, 1), dtype=np.bool_), engine)
    return Workload(
        replace(program, name=f"packed-{program.name}", before=before, loop=loop,
                instructions_per_trip=program.instructions_per_trip + more),
        whole,
        Region(b, 4 * TILE * k, 4 * TILE * k),
    )  # fmt: skip


def _height(m: int, kernel: Kernel) -> int:
    """Values from one column of A or C to the next. A single tile of rows uses all banks without padding."""
    rows = aligned(m, kernel.tile_rows)
    if not kernel.padded or rows == kernel.tile_rows:
        return rows
    return (aligned(rows, PIECE) // PIECE | 1) * PIECE


def _pass(kernel: Kernel, engine: Engine, b: int, pitch: int, height: int) -> Iterator[Phase]:
    """One delivered line of each column of the tile, times the selected rows of A."""
    wide, high, per_line = kernel.tile_columns, kernel.tile_rows, engine.entries_per_line
    entries = wide * per_line
    unpack = UNPACK if engine.compaction else 1 if engine.narrow else 0
    yield Phase(VALU, 4, scalar=2)
    yield Phase(
        LOAD, -(-wide * VALUES_PER_LINE // WAVE), base=b, per_column=wide * pitch, per_trip=LINE,
        rows=wide, pitch=pitch, lines=1, mark=MARK, gather=0,
    )  # fmt: skip
    yield Phase(WAIT, 1, scalar=1)
    yield Phase(VALU, unpack * -(-entries // WAVE))
    yield Phase(LDS, -(-entries // WAVE), scalar=1)
    loads = list(_loads(kernel, engine, height))
    if kernel.weights == "tile":
        yield from (phase for load in loads for phase in (Phase(VALU, ADDRESS * load.count), load))
        yield Phase(WAIT, 1)
        yield Phase(LDS, per_line * high // WAVE, scalar=1)
        yield from _products(entries * high // WAVE)
        return
    for first in range(0, len(loads), LOADS_AT_ONCE):
        group = loads[first : first + LOADS_AT_ONCE]
        for load in group:
            yield Phase(LDS, -(-load.rows // 4))
            yield Phase(VALU, ADDRESS * load.count)
            yield load
        yield Phase(WAIT, 1)
        yield Phase(VALU, _vector(sum(load.count for load in group)), scalar=1)


def _loads(kernel: Kernel, engine: Engine, height: int) -> Iterator[Phase]:
    """The rows of A that entries select: one load per row and wavefront."""
    lines, per_line = kernel.tile_rows * 4 // LINE, engine.entries_per_line
    for column in range(1 if kernel.weights == "tile" else kernel.tile_columns):
        for first in range(0, per_line, LINES_AT_ONCE // lines):
            rows = min(LINES_AT_ONCE // lines, per_line - first)
            yield Phase(
                LOAD, -(-rows * kernel.tile_rows // WAVE), per_row=4 * kernel.tile_rows, rows=rows, pitch=4 * height,
                lines=lines, mark=PLAIN, gather=kernel.tile_columns + column * per_line + first,
            )  # fmt: skip


def _products(multiplications: int) -> Iterator[Phase]:
    """Multiplication from LDS, as in the dense kernel."""
    yield Phase(LDS, -(-multiplications // PRODUCTS_PER_LDS))
    yield Phase(VALU, _vector(multiplications), scalar=2)


def _vector(multiplications: int) -> int:
    all_of_them, products = DENSE_INSTRUCTIONS
    return -(-multiplications * all_of_them // products)


def _stores(kernel: Kernel, c: int, height: int) -> Iterator[Phase]:
    lines = kernel.tile_rows * 4 // LINE
    at_once = LINES_AT_ONCE // lines
    for first in range(0, kernel.tile_columns, at_once):
        columns = min(at_once, kernel.tile_columns - first)
        yield Phase(VALU, 6)
        yield Phase(
            STORE, 1, base=c + first * 4 * height, per_row=4 * kernel.tile_rows,
            per_column=4 * height * kernel.tile_columns, rows=columns, pitch=4 * height, lines=lines,
        )  # fmt: skip


def _turned(phase: Phase) -> Phase:
    return replace(phase, per_row=phase.per_column, per_column=phase.per_row)


def _instructions(phases: tuple[Phase, ...]) -> int:
    return sum(phase.count + phase.scalar for phase in phases)


def _indices(
    mask: Mask, made: Layout, engine: Engine, wide: int, skip: bool
) -> tuple[NDArray[np.uint16], NDArray[np.int64], NDArray[np.int64]]:
    """For each iteration of a tile, the columns with a line left, and the row of each entry; the start of each tile;
    and its number of iterations. The longest column of a tile comes first."""
    per_line = made.per_line
    block = wide * (1 + per_line)
    chosen = kept(mask if skip else np.ones_like(mask), engine)
    lines = np.maximum(1, -(-chosen.sum(axis=1) // per_line)).reshape(-1, wide)
    trips: NDArray[np.int64] = lines.max(axis=1)
    size = int(trips.sum()) * block
    if size > MOST_INDICES:
        raise UsageError(
            f"a mask of {list(mask.shape)} needs {size} indices: expected at most {MOST_INDICES}; "
            "give fewer columns, they are repeated"
        )
    starts = np.cumsum(trips) - trips
    indices = np.full((int(trips.sum()), block), SKIPPED, dtype=np.uint16)
    for tile, start in enumerate(starts):
        own = chosen[tile * wide : (tile + 1) * wide]
        order = np.argsort(-own.sum(axis=1), kind="stable")
        table = indices[start : start + trips[tile]]
        delivered = made.delivered[tile * wide : (tile + 1) * wide]
        for place, column in enumerate(order):
            table[: delivered[column], place] = column
            rows = np.flatnonzero(own[column])
            entries = np.full(int(trips[tile]) * per_line, SKIPPED, dtype=np.uint16)
            entries[: len(rows)] = rows
            table[:, wide + place * per_line : wide + (place + 1) * per_line] = entries.reshape(-1, per_line)
    return indices, starts, trips

"""One pass over activation maps that counts their zeros: all maps of a table in one launch.

A map is a matrix of channels by columns, column ``image * pixels + pixel``. A program counts one tile: ``CHUNK`` rows
of 128 columns, so that no union crosses programs. Sums are integers, so that results do not depend on the order of
programs. A map of more rows has several programs per column tile, which exchange the counts of each column in scratch.

The last program to arrive completes the work of several: it computes the maximum of their columns, or the map's words,
and resets the accumulators to zero for the next launch.

A row of the table, int64, describes a map; ``FIELDS`` lists its entries. Addresses are integers, since each map has its
own. ``INDEX`` is the integer type of offsets within a map.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.spec import Cost

FIELDS = tl.constexpr(20)
"""x, y, words, sums, active, arrivals; rows, columns, pixels; strides of x by image, row and pixel; those of y; chunks
of rows, the offset of their column counts in the scratch, the first program of the map, the number of its programs; and
one for alignment to 16 bytes."""

CHUNK = tl.constexpr(128)
"""Rows that one program counts."""

COLUMNS = tl.constexpr(128)
"""Columns that one program counts: the widest union."""

ROW_BLOCK = tl.constexpr(1024)
"""Rows whose activity flags are loaded together."""


@triton.jit
@no_type_check
def map_of_program(table, maps, MAPS: tl.constexpr):
    """The row of the table of this program's map, from the first programs of all maps."""
    index = tl.arange(0, MAPS)
    first_programs = tl.load(table + index * FIELDS + 17, index < maps, 0x7FFFFFFF)
    started = (first_programs <= tl.program_id(0)).to(tl.int32)
    return table + (tl.sum(started, axis=0) - 1) * FIELDS


@triton.jit
@no_type_check
def popcount(bits):
    """The number of set bits of each 32-bit integer."""
    pairs = bits - ((bits >> 1) & 0x55555555)
    quads = (pairs & 0x33333333) + ((pairs >> 2) & 0x33333333)
    bytes_ = (quads + (quads >> 4)) & 0x0F0F0F0F
    words16 = bytes_ + (bytes_ >> 8)
    return ((words16 + (words16 >> 16)) & 0x3F).to(tl.int32)


@triton.jit
@no_type_check
def bitwise_or(left, right):
    """Bitwise or."""
    return left | right


@triton.jit
@no_type_check
def union_groups(bits, GROUPS: tl.constexpr, WIDTH: tl.constexpr):
    """The bitwise or of each group of adjacent columns."""
    return tl.reduce(tl.reshape(bits, (GROUPS, WIDTH)), 1, bitwise_or)


@triton.jit
@no_type_check
def is_last(arrivals, programs):
    """Whether all other programs have arrived: their writes are then visible to loads that bypass L1."""
    tl.debug_barrier()
    return tl.atomic_add(arrivals, 1, sem="acq_rel") == programs - 1


@triton.jit
@no_type_check
def finish(words, sums, active, rows):
    """Count the active rows of a map, and write its words."""
    num_active = tl.zeros((ROW_BLOCK,), tl.int32)
    for first in range(0, rows, ROW_BLOCK):
        row = first + tl.arange(0, ROW_BLOCK)
        num_active += tl.load(active + row, row < rows, 0, cache_modifier=".cg")
        tl.debug_barrier()  # before any thread overwrites what another may still read
        tl.store(active + row, tl.zeros((ROW_BLOCK,), tl.int32), row < rows)
    word = tl.arange(0, 8)
    values_ = tl.load(sums + word, cache_modifier=".cg")
    tl.store(words + word, tl.where(word == 1, tl.sum(num_active, axis=0).to(tl.int64), values_))
    tl.debug_barrier()
    tl.store(sums + word, tl.zeros((8,), tl.int64))


@triton.jit
@no_type_check
def count_kernel(
    table, scratch, maps,
    DTYPE: tl.constexpr, RELU: tl.constexpr, CHANNELS_LAST: tl.constexpr, MAPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Add the counts of this program's tile to its map's words, and flag its active rows.

    With ``RELU`` it counts the ReLU of ``x`` and writes it to ``y``, which may be ``x`` itself. ``CHANNELS_LAST``: rows
    are contiguous in memory; columns are the first dimension of a tile, so that threads run along them otherwise. 32
    rows of a column are the bits of an integer: their unions take one bitwise or.
    """
    entry = map_of_program(table, maps, MAPS)
    x = tl.load(entry).to(tl.pointer_type(DTYPE))
    y = tl.load(entry + 1).to(tl.pointer_type(DTYPE))
    words = tl.load(entry + 2).to(tl.pointer_type(tl.int64))
    sums = tl.load(entry + 3).to(tl.pointer_type(tl.int64))
    active = tl.load(entry + 4).to(tl.pointer_type(tl.int32))
    arrivals = tl.load(entry + 5).to(tl.pointer_type(tl.int32))
    rows = tl.load(entry + 6).to(tl.int32)
    columns = tl.load(entry + 7).to(INDEX)
    pixels = tl.load(entry + 8).to(INDEX)
    x_n = tl.load(entry + 9).to(INDEX)
    x_c = 1 if CHANNELS_LAST else tl.load(entry + 10).to(INDEX)
    x_p = tl.load(entry + 11).to(INDEX)
    y_n = tl.load(entry + 12).to(INDEX)
    y_c = 1 if CHANNELS_LAST else tl.load(entry + 13).to(INDEX)
    y_p = tl.load(entry + 14).to(INDEX)
    chunks = tl.load(entry + 15).to(tl.int32)
    tile = tl.program_id(0) - tl.load(entry + 17).to(tl.int32)
    chunk = tile % chunks
    column = (tl.zeros((COLUMNS,), INDEX) + tile // chunks) * COLUMNS + tl.arange(0, COLUMNS)
    image = column // pixels
    pixel = column - image * pixels
    nonzeros = tl.zeros((COLUMNS,), tl.int32)
    over_2 = tl.zeros((COLUMNS // 2,), tl.int32)
    over_16 = tl.zeros((COLUMNS // 16,), tl.int32)
    over_32 = tl.zeros((COLUMNS // 32,), tl.int32)
    over_64 = tl.zeros((COLUMNS // 64,), tl.int32)
    over_128 = tl.zeros((1,), tl.int32)
    for first in range(chunk * CHUNK, tl.minimum(rows, (chunk + 1) * CHUNK), 32):
        row = first + tl.arange(0, 32)
        mask = (column < columns)[:, None] & (row < rows)[None, :]
        values = tl.load(x + (image * x_n + pixel * x_p)[:, None] + (row.to(INDEX) * x_c)[None, :], mask, 0.0)
        if RELU:
            values = tl.where(values < 0, 0.0, values).to(DTYPE)  # NaN stays
            tl.store(y + (image * y_n + pixel * y_p)[:, None] + (row.to(INDEX) * y_c)[None, :], values, mask)
        if DTYPE.primitive_bitwidth < 32:  # the interpreter cannot compare bf16
            values = values.to(tl.float32)
        bits = tl.sum((values != 0).to(tl.uint32) << tl.arange(0, 32)[None, :].to(tl.uint32), axis=1)
        nonzeros += popcount(bits)
        bits = union_groups(bits, COLUMNS // 2, 2)
        over_2 += popcount(bits)
        bits = union_groups(bits, COLUMNS // 16, 8)
        over_16 += popcount(bits)
        bits = union_groups(bits, COLUMNS // 32, 2)
        over_32 += popcount(bits)
        bits = union_groups(bits, COLUMNS // 64, 2)
        over_64 += popcount(bits)
        bits = union_groups(bits, 1, 2)
        over_128 += popcount(bits)
        num_active = (bits >> tl.arange(0, 32).to(tl.uint32)) & 1
        tl.store(active + row, num_active.to(tl.int32), num_active != 0)
    tl.atomic_add(sums, tl.sum(nonzeros, axis=0).to(tl.int64), sem="relaxed")
    tl.atomic_add(sums + 3, tl.sum(over_2, axis=0).to(tl.int64), sem="relaxed")
    tl.atomic_add(sums + 4, tl.sum(over_16, axis=0).to(tl.int64), sem="relaxed")
    tl.atomic_add(sums + 5, tl.sum(over_32, axis=0).to(tl.int64), sem="relaxed")
    tl.atomic_add(sums + 6, tl.sum(over_64, axis=0).to(tl.int64), sem="relaxed")
    tl.atomic_add(sums + 7, tl.sum(over_128, axis=0).to(tl.int64), sem="relaxed")
    if chunks == 1:
        tl.atomic_max(sums + 2, tl.max(nonzeros, axis=0).to(tl.int64), sem="relaxed")
    else:
        counts = scratch + tl.load(entry + 16) + column
        tl.store(counts + chunk * columns.to(tl.int64), nonzeros.to(tl.int16), column < columns)
        if is_last(arrivals + tile // chunks, chunks):
            total = tl.zeros((COLUMNS,), tl.int32)
            for index in range(chunks):
                partial = counts + index * columns.to(tl.int64)
                total += tl.load(partial, column < columns, 0, cache_modifier=".cg").to(tl.int32)
            tl.atomic_max(sums + 2, tl.max(total, axis=0).to(tl.int64), sem="relaxed")
            tl.store(arrivals + tile // chunks, 0)
    if is_last(sums + 1, tl.load(entry + 18)):
        finish(words, sums, active, rows)


def count_cost(elements: int, io_bytes: int, rows: int, columns: int) -> Cost:
    """One read of a map; with several chunks of rows, a write and a read of the counts of each column in each chunk."""
    chunks = -(-rows // CHUNK.value)
    partial_bytes = 2 * chunks * columns if chunks > 1 else 0
    return Cost(elements, elements * io_bytes + partial_bytes, partial_bytes)

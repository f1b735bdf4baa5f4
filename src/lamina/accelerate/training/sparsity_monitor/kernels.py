"""One pass over activation maps that counts their zeros: all maps of a table in one launch.

A map is a matrix of channels by columns, column ``image * pixels + pixel``. A program takes one tile of it: ``CHUNK``
rows of 128 columns, so that every union is its own. What programs add up are integers, so results do not depend on
their order. A map of more rows has several programs to its columns: they hand on how many non-zeros each column has.

Who of several programs comes last finishes what they have begun together: it finds the longest of their columns, or the
map's words, and leaves zeros behind, with which the next launch begins.

A row of the table says where a map is and what it is like, as int64; ``FIELDS`` names its numbers. Addresses are
numbers there, since each map has its own. ``INDEX`` is the type of offsets within a map.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.spec import Cost

FIELDS = tl.constexpr(20)
"""x, y, words, sums, alive, turns; rows, columns, pixels; strides of x by image, row and pixel; those of y; chunks of
rows, where their column counts are in the scratch, the first program of the map, how many it has; and one to keep rows
at multiples of 16 bytes."""

CHUNK = tl.constexpr(128)
"""Rows that one program counts."""

COLUMNS = tl.constexpr(128)
"""Columns that one program counts: the widest union."""

ALIVE = tl.constexpr(1024)
"""Rows that are looked at together for whether they are alive."""


@triton.jit
@no_type_check
def map_of_program(table, maps, MAPS: tl.constexpr):
    """The row of the table that this program works for, by the first programs of all maps."""
    each = tl.arange(0, MAPS)
    firsts = tl.load(table + each * FIELDS + 17, each < maps, 0x7FFFFFFF)
    before = (firsts <= tl.program_id(0)).to(tl.int32)
    return table + (tl.sum(before, axis=0) - 1) * FIELDS


@triton.jit
@no_type_check
def ones(bits):
    """How many bits of each number are set."""
    pairs = bits - ((bits >> 1) & 0x55555555)
    quads = (pairs & 0x33333333) + ((pairs >> 2) & 0x33333333)
    bytes_ = (quads + (quads >> 4)) & 0x0F0F0F0F
    halves = bytes_ + (bytes_ >> 8)
    return ((halves + (halves >> 16)) & 0x3F).to(tl.int32)


@triton.jit
@no_type_check
def either(left, right):
    """The bits of two numbers."""
    return left | right


@triton.jit
@no_type_check
def united(bits, GROUPS: tl.constexpr, WIDTH: tl.constexpr):
    """The bits of each group of neighbours."""
    return tl.reduce(tl.reshape(bits, (GROUPS, WIDTH)), 1, either)


@triton.jit
@no_type_check
def is_last(turns, programs):
    """Whether all others of these programs have come here: what they wrote can be read then, past the L1 cache."""
    tl.debug_barrier()
    return tl.atomic_add(turns, 1, sem="acq_rel") == programs - 1


@triton.jit
@no_type_check
def finish(words, sums, alive, rows):
    """Count the living rows of a map, and hand its words over."""
    living = tl.zeros((ALIVE,), tl.int32)
    for first in range(0, rows, ALIVE):
        row = first + tl.arange(0, ALIVE)
        living += tl.load(alive + row, row < rows, 0, cache_modifier=".cg")
        tl.debug_barrier()  # before any thread writes what another may still read
        tl.store(alive + row, tl.zeros((ALIVE,), tl.int32), row < rows)
    word = tl.arange(0, 8)
    found = tl.load(sums + word, cache_modifier=".cg")
    tl.store(words + word, tl.where(word == 1, tl.sum(living, axis=0).to(tl.int64), found))
    tl.debug_barrier()
    tl.store(sums + word, tl.zeros((8,), tl.int64))


@triton.jit
@no_type_check
def count_kernel(
    table, scratch, maps,
    DTYPE: tl.constexpr, RELU: tl.constexpr, LAST: tl.constexpr, MAPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Add what this program's tile holds to its map's words, and say which of its rows are alive.

    With ``RELU`` what is counted is ReLU of ``x``, and it is written to ``y``, which may be ``x`` itself. ``LAST``,
    rows are neighbours in memory, and so threads go along them; columns come first in a tile so that otherwise they go
    there. Rows are the bits of a number for each column: 32 at once are united.
    """
    mine = map_of_program(table, maps, MAPS)
    x = tl.load(mine).to(tl.pointer_type(DTYPE))
    y = tl.load(mine + 1).to(tl.pointer_type(DTYPE))
    words = tl.load(mine + 2).to(tl.pointer_type(tl.int64))
    sums = tl.load(mine + 3).to(tl.pointer_type(tl.int64))
    alive = tl.load(mine + 4).to(tl.pointer_type(tl.int32))
    turns = tl.load(mine + 5).to(tl.pointer_type(tl.int32))
    rows = tl.load(mine + 6).to(tl.int32)
    columns = tl.load(mine + 7).to(INDEX)
    pixels = tl.load(mine + 8).to(INDEX)
    x_n = tl.load(mine + 9).to(INDEX)
    x_c = 1 if LAST else tl.load(mine + 10).to(INDEX)
    x_p = tl.load(mine + 11).to(INDEX)
    y_n = tl.load(mine + 12).to(INDEX)
    y_c = 1 if LAST else tl.load(mine + 13).to(INDEX)
    y_p = tl.load(mine + 14).to(INDEX)
    chunks = tl.load(mine + 15).to(tl.int32)
    tile = tl.program_id(0) - tl.load(mine + 17).to(tl.int32)
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
        known = (column < columns)[:, None] & (row < rows)[None, :]
        values = tl.load(x + (image * x_n + pixel * x_p)[:, None] + (row.to(INDEX) * x_c)[None, :], known, 0.0)
        if RELU:
            values = tl.where(values < 0, 0.0, values).to(DTYPE)  # NaN stays
            tl.store(y + (image * y_n + pixel * y_p)[:, None] + (row.to(INDEX) * y_c)[None, :], values, known)
        if DTYPE.primitive_bitwidth < 32:  # the interpreter cannot compare bf16
            values = values.to(tl.float32)
        bits = tl.sum((values != 0).to(tl.uint32) << tl.arange(0, 32)[None, :].to(tl.uint32), axis=1)
        nonzeros += ones(bits)
        bits = united(bits, COLUMNS // 2, 2)
        over_2 += ones(bits)
        bits = united(bits, COLUMNS // 16, 8)
        over_16 += ones(bits)
        bits = united(bits, COLUMNS // 32, 2)
        over_32 += ones(bits)
        bits = united(bits, COLUMNS // 64, 2)
        over_64 += ones(bits)
        bits = united(bits, 1, 2)
        over_128 += ones(bits)
        living = (bits >> tl.arange(0, 32).to(tl.uint32)) & 1
        tl.store(alive + row, living.to(tl.int32), living != 0)
    tl.atomic_add(sums, tl.sum(nonzeros, axis=0).to(tl.int64), sem="relaxed")
    tl.atomic_add(sums + 3, tl.sum(over_2, axis=0).to(tl.int64), sem="relaxed")
    tl.atomic_add(sums + 4, tl.sum(over_16, axis=0).to(tl.int64), sem="relaxed")
    tl.atomic_add(sums + 5, tl.sum(over_32, axis=0).to(tl.int64), sem="relaxed")
    tl.atomic_add(sums + 6, tl.sum(over_64, axis=0).to(tl.int64), sem="relaxed")
    tl.atomic_add(sums + 7, tl.sum(over_128, axis=0).to(tl.int64), sem="relaxed")
    if chunks == 1:
        tl.atomic_max(sums + 2, tl.max(nonzeros, axis=0).to(tl.int64), sem="relaxed")
    else:
        counts = scratch + tl.load(mine + 16) + column
        tl.store(counts + chunk * columns.to(tl.int64), nonzeros.to(tl.int16), column < columns)
        if is_last(turns + tile // chunks, chunks):
            whole = tl.zeros((COLUMNS,), tl.int32)
            for each in range(chunks):
                place = counts + each * columns.to(tl.int64)
                whole += tl.load(place, column < columns, 0, cache_modifier=".cg").to(tl.int32)
            tl.atomic_max(sums + 2, tl.max(whole, axis=0).to(tl.int64), sem="relaxed")
            tl.store(turns + tile // chunks, 0)
    if is_last(sums + 1, tl.load(mine + 18)):
        finish(words, sums, alive, rows)


def count_cost(elements: int, io_bytes: int, rows: int, columns: int) -> Cost:
    """One read of a map; of one of several chunks of rows, what each column has in each, written and read."""
    chunks = -(-rows // CHUNK.value)
    handed_on = 2 * chunks * columns if chunks > 1 else 0
    return Cost(elements, elements * io_bytes + handed_on, handed_on)

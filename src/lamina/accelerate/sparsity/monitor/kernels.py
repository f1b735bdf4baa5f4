"""One pass over an activation map that counts its zeros, and the sum of what its programs found.

A map is a matrix of channels by columns, column ``image * pixels + pixel``. A program takes whole blocks of 128
columns, so that every union and every column is its own; nothing is added atomically, and results do not depend on
the order of programs. ``INDEX`` is the type of addresses.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.spec import Cost


@triton.jit
@no_type_check
def bits_of(set_, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A tile of ones and zeros, 32 neighbouring columns in the bits of one number: ``(ROWS * COLUMNS // 32,)``."""
    lanes = tl.reshape(set_, (ROWS * COLUMNS // 32, 32)).to(tl.uint32)
    return tl.sum(lanes << tl.arange(0, 32)[None, :].to(tl.uint32), axis=1).to(tl.uint32)


@triton.jit
@no_type_check
def union_of_pairs(bits):
    """How many of the pairs of neighbours hold a bit that is set."""
    pairs = (bits | (bits >> 1)) & 0x55555555
    quads = (pairs & 0x33333333) + ((pairs >> 2) & 0x33333333)
    bytes_ = (quads & 0x0F0F0F0F) + ((quads >> 4) & 0x0F0F0F0F)
    halves = (bytes_ & 0x00FF00FF) + ((bytes_ >> 8) & 0x00FF00FF)
    return ((halves & 0xFFFF) + (halves >> 16)).to(tl.int32)


@triton.jit
@no_type_check
def count_kernel(
    x, y, stamp, alive, found, rows, columns, pixels, x_n, x_c, x_p, y_n, y_c, y_p,
    RELU: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, HALF: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """Write what this program's columns hold to its row of ``found [programs, WORDS]``.

    ``alive[row]`` becomes the number of this observation, one more than ``stamp``, where the row has a non-zero: so it
    never needs clearing. ``HALF``, elements are narrower than float32. With ``RELU`` what is counted is ReLU of ``x``,
    and it is written to ``y``, which may be ``x`` itself.
    """
    nonzeros = tl.zeros((), tl.int64)
    longest = tl.zeros((), tl.int32)
    over_2 = tl.zeros((), tl.int64)
    over_16 = tl.zeros((), tl.int64)
    over_32 = tl.zeros((), tl.int64)
    over_64 = tl.zeros((), tl.int64)
    over_128 = tl.zeros((), tl.int64)
    now = tl.load(stamp) + 1
    for block in range(tl.program_id(0), tl.cdiv(columns, COLUMNS), tl.num_programs(0)):
        column = (tl.zeros((COLUMNS,), INDEX) + block) * COLUMNS + tl.arange(0, COLUMNS)
        image = column // pixels
        pixel = column % pixels
        place = image * x_n + pixel * x_p
        in_columns = tl.zeros((ROWS, COLUMNS), tl.int32)
        for first in range(0, rows, ROWS):
            row = first + tl.arange(0, ROWS)
            known = (row < rows)[:, None] & (column < columns)[None, :]
            values = tl.load(x + (row.to(INDEX) * x_c)[:, None] + place[None, :], known, 0.0)
            if RELU:
                values = tl.where(values < 0, 0.0, values).to(y.dtype.element_ty)  # NaN stays
                tl.store(y + (row.to(INDEX) * y_c)[:, None] + (image * y_n + pixel * y_p)[None, :], values, known)
            if HALF:
                values = values.to(tl.float32)
            set_ = (values != 0).to(tl.int32)
            in_columns += set_
            bits = bits_of(set_, ROWS, COLUMNS)
            over_2 += tl.sum(union_of_pairs(bits), axis=0)
            over_16 += tl.sum(((bits & 0xFFFF) != 0).to(tl.int32) + ((bits >> 16) != 0).to(tl.int32), axis=0)
            over = (bits != 0).to(tl.int32)
            over_32 += tl.sum(over, axis=0)
            over = tl.max(tl.reshape(over, (ROWS * COLUMNS // 64, 2)), axis=1)
            over_64 += tl.sum(over, axis=0)
            over = tl.max(tl.reshape(over, (ROWS, COLUMNS // 64)), axis=1)
            over_128 += tl.sum(over, axis=0)
            tl.store(alive + row, tl.zeros((ROWS,), tl.int64) + now, (row < rows) & (over != 0))
        column_sums = tl.sum(in_columns, axis=0)
        nonzeros += tl.sum(column_sums, axis=0)
        longest = tl.maximum(longest, tl.max(column_sums, axis=0))
    mine = found + tl.program_id(0) * WORDS
    tl.store(mine, nonzeros)
    tl.store(mine + 2, longest.to(tl.int64))
    tl.store(mine + 3, over_2)
    tl.store(mine + 4, over_16)
    tl.store(mine + 5, over_32)
    tl.store(mine + 6, over_64)
    tl.store(mine + 7, over_128)


@triton.jit
@no_type_check
def finish_kernel(
    stamp, alive, found, words, rows, programs,
    WORDS: tl.constexpr, PROGRAMS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Put the programs' findings together into ``words [WORDS]``, and count the observation in ``stamp``."""
    word = tl.arange(0, WORDS)
    sums = tl.zeros((WORDS,), tl.int64)
    most = tl.zeros((WORDS,), tl.int64)
    for first in range(0, programs, PROGRAMS):
        program = first + tl.arange(0, PROGRAMS)
        tile = tl.load(found + program[:, None] * WORDS + word[None, :], (program < programs)[:, None], 0)
        sums += tl.sum(tile, axis=0)
        most = tl.maximum(most, tl.max(tile, axis=0))
    now = tl.load(stamp) + 1
    living = tl.zeros((), tl.int64)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        seen = tl.load(alive + row, row < rows, 0) == now
        living += tl.sum(seen.to(tl.int64), axis=0)
    tl.store(words + word, tl.where(word == 2, most, tl.where(word == 1, living, sums)))
    tl.store(stamp, now)


def count_cost(elements: int, io_bytes: int, programs: int, words: int) -> Cost:
    """One read of the map, and what the programs hand on."""
    return Cost(elements, elements * io_bytes + 8 * programs * words, 8 * programs * words)

"""ReLU with its bits, non-zeros of a tensor and back, and max-pooling; each program a block.

``INDEX`` is the type of addresses.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.kernels import rounded
from lamina.spec import Cost

PROGRAM = tl.constexpr(1 << 36)
"""One program in a counter, which counts elements below."""
ELEMENTS = tl.constexpr((1 << 36) - 1)


@triton.jit
@no_type_check
def elements_of(BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """Where this program's elements are."""
    return tl.cast(tl.program_id(0), INDEX) * BLOCK + tl.arange(0, BLOCK)


@triton.jit
@no_type_check
def store_bits(bits, present, size, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """Eight elements to a byte, the first in its lowest bit."""
    byte = tl.sum(tl.reshape(present, (BLOCK // 8, 8)) << tl.arange(0, 8)[None, :], axis=1)
    row = tl.cast(tl.program_id(0), INDEX) * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    tl.store(bits + row, byte.to(tl.uint8), row * 8 < size)


@triton.jit
@no_type_check
def load_bits(bits, size, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """The bits of this program's elements."""
    row = tl.cast(tl.program_id(0), INDEX) * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    byte = tl.load(bits + row, row * 8 < size, 0).to(tl.int32)
    return tl.reshape((byte[:, None] >> tl.arange(0, 8)[None, :]) & 1, (BLOCK,))


@triton.jit
@no_type_check
def relu_kernel(x, y, bits, size, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """ReLU, and bits of what it let through; NaN is let through, and negative zero becomes zero."""
    place = elements_of(BLOCK, INDEX)
    value = tl.load(x + place, place < size, 0)
    number = value
    if value.dtype.primitive_bitwidth < 32:  # the interpreter cannot compare bf16
        number = value.to(tl.float32)
    through = 1 - (number <= 0).to(tl.int32)
    tl.store(y + place, tl.where(through != 0, value, tl.zeros_like(value)), place < size)
    store_bits(bits, through, size, BLOCK, INDEX)


@triton.jit
@no_type_check
def masked_kernel(x, bits, y, size, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """Elements whose bit is set, and zero for the others."""
    place = elements_of(BLOCK, INDEX)
    value = tl.load(x + place, place < size, 0)
    through = load_bits(bits, size, BLOCK, INDEX)
    tl.store(y + place, tl.where(through != 0, value, tl.zeros_like(value)), place < size)


@triton.jit(do_not_specialize=["capacity"])
@no_type_check
def pack_kernel(
    x, bits, offsets, values, counter, told, size, capacity, BITS: tl.constexpr, BLOCK: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """The non-zeros of each block together, in the order in which blocks come, as far as ``capacity`` goes.

    ``counter`` is zero before and after; ``told``, memory that the host sees, gets the number of non-zeros.
    """
    place = elements_of(BLOCK, INDEX)
    value = tl.load(x + place, place < size, 0)
    present = (value != 0).to(tl.int32)
    if BITS:
        store_bits(bits, present, size, BLOCK, INDEX)
    count = tl.sum(present, axis=0).to(tl.int64)
    before = tl.atomic_add(counter, count + PROGRAM)
    start = before & ELEMENTS
    tl.store(offsets + tl.program_id(0), start)
    at = start + (tl.cumsum(present, axis=0) - present)
    tl.store(values + at, value, (present != 0) & (at < capacity))
    if before // PROGRAM == tl.num_programs(0) - 1:
        tl.store(counter, tl.zeros((), tl.int64))
        tl.store(told, start + count)


@triton.jit(do_not_specialize=["capacity"])
@no_type_check
def unpack_kernel(bits, offsets, values, y, size, capacity, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """Non-zeros back to their places; NaN for those that there was no room for."""
    place = elements_of(BLOCK, INDEX)
    present, start = load_bits(bits, size, BLOCK, INDEX), tl.load(offsets + tl.program_id(0))
    at, room = tl.cumsum(present, axis=0) - present, tl.minimum(capacity - start, BLOCK).to(tl.int32)
    value = tl.load(values + start + at, (present != 0) & (at < room), -1)  # all bits set, which are no number
    tl.store(y + place, tl.where(present != 0, value, tl.zeros_like(value)), place < size)


SIZES = ("rows", "height", "width", "high", "wide")
"""Nothing is known of these numbers, so that neighbours have one element each, and what they load lies together."""


@triton.jit
@no_type_check
def tile_of(width, ROWS: tl.constexpr, WIDE: tl.constexpr, INDEX: tl.constexpr):
    """This program's rows, of all planes together, and its columns, which tiles have as their first axis."""
    across = tl.cdiv(width, WIDE)
    down = tl.program_id(0) // across
    column = (tl.program_id(0) - down * across) * WIDE + tl.arange(0, WIDE)
    return tl.cast(down, INDEX) * ROWS + tl.arange(0, ROWS), column


@triton.jit(do_not_specialize=SIZES)
@no_type_check
def max_pool_kernel(
    x, y, places, rows, height, width, high, wide, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr,
    SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """The greatest element of each window, the first of equals or the last NaN, and its place in the window.

    ``rows`` of ``wide`` results, ``high`` in each plane of ``height x width``.
    """
    row, column = tile_of(wide, ROWS, WIDE, INDEX)
    plane = row // high
    top, left = (row - plane * high).to(tl.int32) * SH - PH, column * SW - PW
    place = tl.maximum(-top, 0)[None, :] * KW + tl.maximum(-left, 0)[:, None]
    greatest = tl.full((WIDE, ROWS), float("-inf"), tl.float32).to(x.dtype.element_ty)
    for i in tl.static_range(KH):
        line = x + (plane * height + top + i) * width
        there = (row < rows) & (top + i >= 0) & (top + i < height)
        for j in tl.static_range(KW):
            inside = there[None, :] & ((left + j >= 0) & (left + j < width))[:, None]
            value = tl.load(line[None, :] + (left + j)[:, None], inside, float("-inf"))
            number, most = value, greatest
            if value.dtype.primitive_bitwidth < 32:  # the interpreter cannot compare bf16
                number, most = value.to(tl.float32), greatest.to(tl.float32)
            greater = (number > most) | (number != number)
            greatest = tl.where(greater, value, greatest)
            place = tl.where(greater, i * KW + j, place)
    at, inside = row[None, :] * wide + column[:, None], (row < rows)[None, :] & (column < wide)[:, None]
    tl.store(y + at, greatest, inside)
    tl.store(places + at, place.to(tl.uint8), inside)


@triton.jit(do_not_specialize=SIZES)
@no_type_check
def max_pool_backward_kernel(
    gradient, places, y, rows, height, width, high, wide, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr,
    SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, UPCAST: tl.constexpr, ROWS: tl.constexpr,
    WIDE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """To each element the gradients of the windows whose greatest it is, in their order, as PyTorch adds them.

    ``rows`` of ``width`` elements, ``height`` in each plane, which has ``high x wide`` windows.
    """
    row, column = tile_of(width, ROWS, WIDE, INDEX)
    plane = row // height
    top, left = (row - plane * height).to(tl.int32) + PH, column + PW
    number = tl.float64 if y.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros((WIDE, ROWS), number)
    for up in tl.static_range((KH - 1) // SH, -1, -1):
        v = top // SH - up
        i = top - v * SH
        line, there = (plane * high + v) * wide, (row < rows) & (v >= 0) & (v < high) & (i < KH)
        for back in tl.static_range((KW - 1) // SW, -1, -1):
            h = left // SW - back
            j = left - h * SW
            window, inside = line[None, :] + h[:, None], there[None, :] & ((h >= 0) & (h < wide) & (j < KW))[:, None]
            mine = tl.load(places + window, inside, 0).to(tl.int32) == (i * KW)[None, :] + j[:, None]
            value = tl.load(gradient + window, inside, 0).to(number)
            total += tl.where(inside & mine, value, 0)
    at, inside = row[None, :] * width + column[:, None], (row < rows)[None, :] & (column < width)[:, None]
    tl.store(y + at, rounded(total, y.dtype.element_ty, UPCAST), inside)


def pack_cost(elements: int, nonzeros: int, io_bytes: int) -> Cost:
    """A read of the tensor; bits and values written. The ReLU's own bits are written where it is computed."""
    return Cost(0, elements * io_bytes, -(-elements // 8) + nonzeros * io_bytes)

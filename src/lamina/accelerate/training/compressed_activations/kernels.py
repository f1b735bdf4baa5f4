"""ReLU with its bits, non-zeros of a tensor and back, and max-pooling; each program a block.

``INDEX`` is the type of addresses.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.runtime.triton_utils import fast_divide, rounded
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


SIZES = ("height", "width", "high", "wide", "by_height", "by_width", "by_high", "by_wide")
"""What differs between the maps of a network, for which a pooling is compiled once."""


@triton.jit
@no_type_check
def divided(number, divisor, by, INDEX: tl.constexpr):
    """Quotient and remainder of what is not negative; ``by`` is the divisor's `reciprocal`."""
    if tl.int32 == INDEX:
        whole = fast_divide(number, by)
    else:
        whole = number // divisor
    return whole, (number - whole * divisor).to(tl.int32)


@triton.jit(do_not_specialize=SIZES)
@no_type_check
def max_pool_kernel(
    x, y, places, size, height, width, high, wide, by_height, by_width, by_high, by_wide,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    BLOCK: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """The greatest element of each window, the first of equals or the last NaN, and its place in the window.

    ``size`` counts results, ``high x wide`` in each plane of ``height x width``; ``by_`` are these sizes' reciprocals.
    """
    at = elements_of(BLOCK, INDEX)
    row, column = divided(at, wide, by_wide, INDEX)
    plane, row = divided(row, high, by_high, INDEX)
    top, left = row * SH - PH, column * SW - PW
    corner = x + (plane * height + top) * width + left
    place = tl.maximum(-top, 0) * KW + tl.maximum(-left, 0)
    greatest = tl.full((BLOCK,), float("-inf"), tl.float32).to(x.dtype.element_ty)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            inside = at < size
            if PH:  # windows stand out
                inside &= (top + i >= 0) & (top + i < height)
            if PW:
                inside &= (left + j >= 0) & (left + j < width)
            value = tl.load(corner + i * width + j, inside, float("-inf"))
            number, most = value, greatest
            if value.dtype.primitive_bitwidth < 32:  # the interpreter cannot compare bf16
                number, most = value.to(tl.float32), greatest.to(tl.float32)
            greater = (number > most) | (number != number)
            greatest = tl.where(greater, value, greatest)
            place = tl.where(greater, i * KW + j, place)
    tl.store(y + at, greatest, at < size)
    tl.store(places + at, place.to(tl.uint8), at < size)


@triton.jit(do_not_specialize=SIZES)
@no_type_check
def max_pool_backward_kernel(
    gradient, places, y, size, height, width, high, wide, by_height, by_width, by_high, by_wide,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    UPCAST: tl.constexpr, BLOCK: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """To each of ``size`` elements the gradients of windows whose greatest it is, in their order as PyTorch adds."""
    at = elements_of(BLOCK, INDEX)
    row, column = divided(at, width, by_width, INDEX)
    plane, row = divided(row, height, by_height, INDEX)
    row, column = (row + PH).to(tl.uint32), (column + PW).to(tl.uint32)  # so that powers of two divide by shifts
    last_v, last_h = (row // SH).to(tl.int32), (column // SW).to(tl.int32)
    last_i, last_j = (row % SH).to(tl.int32), (column % SW).to(tl.int32)
    number = tl.float64 if y.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros((BLOCK,), number)
    for up in tl.static_range((KH - 1) // SH, -1, -1):
        for back in tl.static_range((KW - 1) // SW, -1, -1):
            v, h, i, j = last_v - up, last_h - back, last_i + up * SH, last_j + back * SW
            inside = (at < size) & (v < high) & (h < wide)
            if up:
                inside &= v >= 0
            if back:
                inside &= h >= 0
            if (up + 1) * SH > KH:
                inside &= i < KH
            if (back + 1) * SW > KW:
                inside &= j < KW
            window = (plane * high + v) * wide + h
            mine = tl.load(places + window, inside, 0).to(tl.int32) == i * KW + j
            total += tl.load(gradient + window, inside & mine, 0).to(number)
    tl.store(y + at, rounded(total, y.dtype.element_ty, UPCAST), at < size)


def pack_cost(elements: int, nonzeros: int, io_bytes: int) -> Cost:
    """A read of the tensor; bits and values written. The ReLU's own bits are written where it is computed."""
    return Cost(0, elements * io_bytes, -(-elements // 8) + nonzeros * io_bytes)

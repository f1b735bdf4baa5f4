"""ReLU with its bits, and non-zeros of a tensor and back; each program a block. ``INDEX`` is the type of addresses.

A block is rows of eight elements, whose bits are a byte: threads have whole rows or halves of them, and only the rows'
numbers of non-zeros are added up over the block.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.spec import Cost

PROGRAM = tl.constexpr(1 << 36)
"""One program in a counter, which counts elements below."""
ELEMENTS = tl.constexpr((1 << 36) - 1)


@triton.jit
@no_type_check
def places(BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """Of this program's rows of eight elements: where their bytes are, and where the elements."""
    row = tl.cast(tl.program_id(0), INDEX) * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    return row, row[:, None] * 8 + tl.arange(0, 8)[None, :]


@triton.jit
@no_type_check
def byte_of(present):
    """Eight bits to a byte, the first the lowest."""
    return tl.sum(present << tl.arange(0, 8)[None, :], axis=1)


@triton.jit
@no_type_check
def bits_of(byte):
    """The bits of a byte."""
    return (byte[:, None] >> tl.arange(0, 8)[None, :]) & 1


@triton.jit
@no_type_check
def ones(byte):
    """How many bits of a byte are set."""
    pairs = byte - ((byte >> 1) & 0x55)
    quads = (pairs & 0x33) + ((pairs >> 2) & 0x33)
    return (quads + (quads >> 4)) & 0x0F


@triton.jit
@no_type_check
def ranks(byte):
    """How many set bits there are before each bit, byte after byte."""
    count = ones(byte)
    return (tl.cumsum(count, axis=0) - count)[:, None] + ones(byte[:, None] & ((1 << tl.arange(0, 8)) - 1)[None, :])


@triton.jit
@no_type_check
def relu_kernel(x, y, bits, size, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """ReLU, and bits of what it let through; NaN is let through, and negative zero becomes zero."""
    row, place = places(BLOCK, INDEX)
    value = tl.load(x + place, place < size, 0)
    number = value
    if value.dtype.primitive_bitwidth < 32:  # the interpreter cannot compare bf16
        number = value.to(tl.float32)
    through = 1 - (number <= 0).to(tl.int32)
    tl.store(y + place, tl.where(through != 0, value, tl.zeros_like(value)), place < size)
    tl.store(bits + row, byte_of(through).to(tl.uint8), row * 8 < size)


@triton.jit
@no_type_check
def masked_kernel(x, bits, y, size, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """Elements whose bit is set, and zero for the others."""
    row, place = places(BLOCK, INDEX)
    through = bits_of(tl.load(bits + row, row * 8 < size, 0).to(tl.int32))
    value = tl.load(x + place, place < size, 0)
    tl.store(y + place, tl.where(through != 0, value, tl.zeros_like(value)), place < size)


@triton.jit
@no_type_check
def pack_kernel(
    x, bits, offsets, values, counter, told, size, capacity, BITS: tl.constexpr, BLOCK: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """The non-zeros of each block together, in the order in which blocks come, as far as ``capacity`` goes.

    ``counter`` is zero before and after; ``told``, memory that the host sees, gets the number of non-zeros.
    """
    row, place = places(BLOCK, INDEX)
    value = tl.load(x + place, place < size, 0)
    byte = byte_of((value != 0).to(tl.int32))
    if BITS:
        tl.store(bits + row, byte.to(tl.uint8), row * 8 < size)
    count = tl.sum(ones(byte), axis=0).to(tl.int64)
    before = tl.atomic_add(counter, count + PROGRAM)
    start = before & ELEMENTS
    tl.store(offsets + tl.program_id(0), start)
    at = start + ranks(byte)
    tl.store(values + at, value, (value != 0) & (at < capacity))
    if before // PROGRAM == tl.num_programs(0) - 1:
        tl.store(counter, tl.zeros((), tl.int64))
        tl.store(told, start + count)


@triton.jit
@no_type_check
def unpack_kernel(bits, offsets, values, y, size, capacity, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """Non-zeros back to their places; NaN for those that there was no room for."""
    row, place = places(BLOCK, INDEX)
    byte = tl.load(bits + row, row * 8 < size, 0).to(tl.int32)
    present = bits_of(byte)
    at = tl.load(offsets + tl.program_id(0)) + ranks(byte)
    value = tl.load(values + at, (present != 0) & (at < capacity), -1)  # all bits set, which are no number
    tl.store(y + place, tl.where(present != 0, value, tl.zeros_like(value)), place < size)


@triton.jit
@no_type_check
def max_pool_kernel(
    x, y, chosen, rows, height, width, out_height, out_width,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """The greatest of each window, and which of the window it is; NaN is the greatest, of equal ones the first."""
    row = tl.cast(tl.program_id(0), INDEX) * ROWS + tl.arange(0, ROWS)
    image = row // out_height
    top = (row - image * out_height).to(tl.int32) * SH - PH
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    left = column * SW - PW
    greatest = tl.full((ROWS, WIDTH), float("-inf"), tl.float32).to(x.dtype.element_ty)
    if x.dtype.element_ty.primitive_bitwidth < 32:  # the interpreter cannot compare bf16
        greatest = greatest.to(tl.float32)
    which = tl.full((ROWS, WIDTH), -1, tl.int32)
    for i in tl.static_range(KH):
        h = top + i
        line = x + (image * height + h) * width
        for j in tl.static_range(KW):
            w = left + j
            known = ((row < rows) & (h >= 0) & (h < height))[:, None] & ((w >= 0) & (w < width))[None, :]
            value = tl.load(line[:, None] + w[None, :], known, 0).to(greatest.dtype)
            better = known & ((value > greatest) | (value != value) | (which < 0))
            greatest = tl.where(better, value, greatest)
            which = tl.where(better, i * KW + j, which)
    place = row[:, None] * out_width + column[None, :]
    within = (row < rows)[:, None] & (column < out_width)[None, :]
    tl.store(y + place, greatest.to(y.dtype.element_ty), within)
    tl.store(chosen + place, which.to(tl.uint8), within)


@triton.jit
@no_type_check
def max_unpool_kernel(
    gradient, chosen, y, rows, height, width, out_height, out_width,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """To each element the gradients of the windows whose greatest it is, added up window after window."""
    row = tl.cast(tl.program_id(0), INDEX) * ROWS + tl.arange(0, ROWS)
    image = row // height
    bottom = (row - image * height).to(tl.int32) + PH
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    right = column + PW
    kind = tl.float64 if y.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros((ROWS, WIDTH), kind)
    for back_h in tl.static_range((KH - 1) // SH, -1, -1):
        h = bottom // SH - back_h
        line = (image * out_height + h) * out_width
        for back_w in tl.static_range((KW - 1) // SW, -1, -1):
            w = right // SW - back_w
            known = ((row < rows) & (h >= 0) & (h < out_height))[:, None] & ((w >= 0) & (w < out_width))[None, :]
            mine = (bottom - h * SH)[:, None] * KW + (right - w * SW)[None, :]
            known = known & ((bottom - h * SH) < KH)[:, None] & ((right - w * SW) < KW)[None, :]
            place = line[:, None] + w[None, :]
            known = known & (tl.load(chosen + place, known, 0).to(tl.int32) == mine)
            total += tl.load(gradient + place, known, 0).to(kind)
    place = row[:, None] * width + column[None, :]
    tl.store(y + place, total.to(y.dtype.element_ty), (row < rows)[:, None] & (column < width)[None, :])


def pack_cost(elements: int, nonzeros: int, io_bytes: int) -> Cost:
    """A read of the tensor; bits and values written. The ReLU's own bits are written where it is computed."""
    return Cost(0, elements * io_bytes, -(-elements // 8) + nonzeros * io_bytes)

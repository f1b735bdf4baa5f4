"""ReLU with its bits, packing and unpacking of bitmaps, and max-pooling; one block per program.

``INDEX`` is the integer type of offsets.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.runtime.triton_utils import fast_divide, rounded
from lamina.spec import Cost

PROGRAM = tl.constexpr(1 << 36)
"""One program in a packed counter, whose low bits count elements."""
ELEMENTS = tl.constexpr((1 << 36) - 1)


@triton.jit
@no_type_check
def elements_of(BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """Offsets of this program's elements."""
    return tl.cast(tl.program_id(0), INDEX) * BLOCK + tl.arange(0, BLOCK)


@triton.jit
@no_type_check
def store_bits(bits, present, size, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """Pack eight flags per byte, the first in the lowest bit."""
    byte = tl.sum(tl.reshape(present, (BLOCK // 8, 8)) << tl.arange(0, 8)[None, :], axis=1)
    row = tl.cast(tl.program_id(0), INDEX) * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    tl.store(bits + row, byte.to(tl.uint8), row * 8 < size)


@triton.jit
@no_type_check
def load_bits(bits, size, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """The bits of this program's elements, one int32 each."""
    row = tl.cast(tl.program_id(0), INDEX) * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    byte = tl.load(bits + row, row * 8 < size, 0).to(tl.int32)
    return tl.reshape((byte[:, None] >> tl.arange(0, 8)[None, :]) & 1, (BLOCK,))


@triton.jit
@no_type_check
def relu_kernel(x, y, bits, size, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """ReLU, and the bits of the elements that pass; NaN passes, and negative zero becomes zero."""
    offset = elements_of(BLOCK, INDEX)
    value = tl.load(x + offset, offset < size, 0)
    comparable = value
    if value.dtype.primitive_bitwidth < 32:  # the interpreter cannot compare bf16
        comparable = value.to(tl.float32)
    passes = 1 - (comparable <= 0).to(tl.int32)
    tl.store(y + offset, tl.where(passes != 0, value, tl.zeros_like(value)), offset < size)
    store_bits(bits, passes, size, BLOCK, INDEX)


@triton.jit
@no_type_check
def masked_kernel(x, bits, y, size, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """The elements whose bit is set, and zero for the others."""
    offset = elements_of(BLOCK, INDEX)
    value = tl.load(x + offset, offset < size, 0)
    passes = load_bits(bits, size, BLOCK, INDEX)
    tl.store(y + offset, tl.where(passes != 0, value, tl.zeros_like(value)), offset < size)


@triton.jit(do_not_specialize=["capacity"])
@no_type_check
def pack_kernel(
    x, bits, offsets, values, counter, reported, size, capacity, BITS: tl.constexpr, BLOCK: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """Pack the non-zeros of each block contiguously, up to ``capacity``; the order of blocks is not deterministic.

    ``counter`` is zero previous and after; ``reported``, pinned host memory, receives the number of non-zeros.
    """
    offset = elements_of(BLOCK, INDEX)
    value = tl.load(x + offset, offset < size, 0)
    present = (value != 0).to(tl.int32)
    if BITS:
        store_bits(bits, present, size, BLOCK, INDEX)
    count = tl.sum(present, axis=0).to(tl.int64)
    previous = tl.atomic_add(counter, count + PROGRAM)
    start = previous & ELEMENTS
    tl.store(offsets + tl.program_id(0), start)
    slot = start + (tl.cumsum(present, axis=0) - present)
    tl.store(values + slot, value, (present != 0) & (slot < capacity))
    if previous // PROGRAM == tl.num_programs(0) - 1:
        tl.store(counter, tl.zeros((), tl.int64))
        tl.store(reported, start + count)


@triton.jit(do_not_specialize=["capacity"])
@no_type_check
def unpack_kernel(bits, offsets, values, y, size, capacity, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """Scatter the non-zeros; NaN for those beyond the capacity."""
    offset = elements_of(BLOCK, INDEX)
    present, start = load_bits(bits, size, BLOCK, INDEX), tl.load(offsets + tl.program_id(0))
    slot, available = tl.cumsum(present, axis=0) - present, tl.minimum(capacity - start, BLOCK).to(tl.int32)
    value = tl.load(values + start + slot, (present != 0) & (slot < available), -1)  # all bits set: a NaN
    tl.store(y + offset, tl.where(present != 0, value, tl.zeros_like(value)), offset < size)


SIZES = ("height", "width", "out_height", "out_width", "h_divisor", "w_divisor", "out_h_divisor", "out_w_divisor")
"""Arguments that differ between the maps of a network: not specialized, so that a pooling is compiled once."""


@triton.jit
@no_type_check
def divided(number, divisor, magic, INDEX: tl.constexpr):
    """Quotient and remainder of a non-negative number; ``magic`` is the `fast_divisor` of the divisor."""
    if tl.int32 == INDEX:
        quotient = fast_divide(number, magic)
    else:
        quotient = number // divisor
    return quotient, (number - quotient * divisor).to(tl.int32)


@triton.jit(do_not_specialize=SIZES)
@no_type_check
def max_pool_kernel(
    x, y, indices, size, height, width, out_height, out_width, h_divisor, w_divisor, out_h_divisor, out_w_divisor,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    BLOCK: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """The maximum of each window, the first of equals or the last NaN, and its index in the window.

    ``size`` counts outputs, ``out_height x out_width`` per plane of ``height x width``.
    """
    offset = elements_of(BLOCK, INDEX)
    row, column = divided(offset, out_width, out_w_divisor, INDEX)
    plane, row = divided(row, out_height, out_h_divisor, INDEX)
    top, left = row * SH - PH, column * SW - PW
    corner = x + (plane * height + top) * width + left
    index = tl.maximum(-top, 0) * KW + tl.maximum(-left, 0)
    maximum = tl.full((BLOCK,), float("-inf"), tl.float32).to(x.dtype.element_ty)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            inside = offset < size
            if PH:  # windows extend into the padding
                inside &= (top + i >= 0) & (top + i < height)
            if PW:
                inside &= (left + j >= 0) & (left + j < width)
            value = tl.load(corner + i * width + j, inside, float("-inf"))
            comparable, current = value, maximum
            if value.dtype.primitive_bitwidth < 32:  # the interpreter cannot compare bf16
                comparable, current = value.to(tl.float32), maximum.to(tl.float32)
            is_greater = (comparable > current) | (comparable != comparable)
            maximum = tl.where(is_greater, value, maximum)
            index = tl.where(is_greater, i * KW + j, index)
    tl.store(y + offset, maximum, offset < size)
    tl.store(indices + offset, index.to(tl.uint8), offset < size)


@triton.jit(do_not_specialize=SIZES)
@no_type_check
def max_pool_backward_kernel(
    gradient, indices, y, size, height, width, out_height, out_width, h_divisor, w_divisor, out_h_divisor,
    out_w_divisor,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    UPCAST: tl.constexpr, BLOCK: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Sum, for each of ``size`` elements, the gradients of windows whose maximum it is, in PyTorch's order."""
    offset = elements_of(BLOCK, INDEX)
    row, column = divided(offset, width, w_divisor, INDEX)
    plane, row = divided(row, height, h_divisor, INDEX)
    row, column = (row + PH).to(tl.uint32), (column + PW).to(tl.uint32)  # division by powers of two is then a shift
    last_v, last_h = (row // SH).to(tl.int32), (column // SW).to(tl.int32)
    last_i, last_j = (row % SH).to(tl.int32), (column % SW).to(tl.int32)
    dtype = tl.float64 if y.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros((BLOCK,), dtype)
    for up in tl.static_range((KH - 1) // SH, -1, -1):
        for back in tl.static_range((KW - 1) // SW, -1, -1):
            v, h, i, j = last_v - up, last_h - back, last_i + up * SH, last_j + back * SW
            inside = (offset < size) & (v < out_height) & (h < out_width)
            if up:
                inside &= v >= 0
            if back:
                inside &= h >= 0
            if (up + 1) * SH > KH:
                inside &= i < KH
            if (back + 1) * SW > KW:
                inside &= j < KW
            window = (plane * out_height + v) * out_width + h
            is_maximum = tl.load(indices + window, inside, 0).to(tl.int32) == i * KW + j
            total += tl.load(gradient + window, inside & is_maximum, 0).to(dtype)
    tl.store(y + offset, rounded(total, y.dtype.element_ty, UPCAST), offset < size)


def pack_cost(elements: int, nonzeros: int, io_bytes: int) -> Cost:
    """Reads the tensor; writes bits and values. The bits of a ReLU are written magic the ReLU kernel."""
    return Cost(0, elements * io_bytes, -(-elements // 8) + nonzeros * io_bytes)

"""Bits and non-zeros of a tensor and back, each program a block of elements. ``INDEX`` is the type of addresses."""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.spec import Cost

ODD = tl.constexpr(1 << 44)
"""Added to a block's count where its bits of a mask are not those of its non-zeros."""


@triton.jit
@no_type_check
def bits_kernel(x, bits, counts, size, FLOAT: tl.constexpr, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """Eight elements to a byte, and how many are not zero as they are stored, to ``counts [1 + blocks]`` behind a 0.

    Bits are of the elements that are not zero; or if they are read as numbers, of type ``FLOAT``, not at most zero.
    """
    place = tl.cast(tl.program_id(0), INDEX) * BLOCK + tl.arange(0, BLOCK)
    stored = tl.load(x + place, place < size, 0)
    nonzero = (stored != 0).to(tl.int32)
    present = nonzero
    if FLOAT is not None:
        value = stored.to(FLOAT, bitcast=True)
        if FLOAT.primitive_bitwidth < 32:  # the interpreter cannot compare bf16
            value = value.to(tl.float32)
        present = tl.where(place < size, 1 - (value <= 0).to(tl.int32), 0)
    byte = tl.sum(tl.reshape(present, (BLOCK // 8, 8)) << tl.arange(0, 8)[None, :], axis=1)
    eighth = tl.cast(tl.program_id(0), INDEX) * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    tl.store(bits + eighth, byte.to(tl.uint8), eighth < tl.cdiv(size, 8))
    count = tl.sum(nonzero, axis=0).to(tl.int64)
    if FLOAT is not None:
        odd = tl.max((nonzero != present).to(tl.int32), axis=0)
        count += tl.where(odd != 0, ODD, 0)
    tl.store(counts + tl.program_id(0) + 1, count)
    if tl.program_id(0) == 0:
        tl.store(counts, tl.zeros((), tl.int64))


@triton.jit
@no_type_check
def pack_kernel(x, offsets, values, size, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """The non-zeros of this program's block, from where its first one stands."""
    place = tl.cast(tl.program_id(0), INDEX) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, place < size, 0)
    present = (value != 0).to(tl.int32)
    rank = tl.cumsum(present, axis=0) - present
    tl.store(values + (tl.load(offsets + tl.program_id(0)) + rank), value, present != 0)


@triton.jit
@no_type_check
def unpack_kernel(bits, offsets, values, y, size, VALUES: tl.constexpr, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """Non-zeros back to their places; without ``VALUES`` all are 1."""
    place = tl.cast(tl.program_id(0), INDEX) * BLOCK + tl.arange(0, BLOCK)
    byte = tl.load(bits + place // 8, place < size, 0).to(tl.int32)
    present = (byte >> (place % 8).to(tl.int32)) & 1
    if VALUES:
        rank = tl.cumsum(present, axis=0) - present
        value = tl.load(values + (tl.load(offsets + tl.program_id(0)) + rank), present != 0, 0)
        tl.store(y + place, value, place < size)
    else:
        tl.store(y + place, present.to(tl.float32).to(y.dtype.element_ty), place < size)


def pack_cost(elements: int, nonzeros: int, io_bytes: int) -> Cost:
    """Two reads of the tensor, since the first tells how much memory its non-zeros take; bits and values written."""
    return Cost(0, 2 * elements * io_bytes, -(-elements // 8) + nonzeros * io_bytes)

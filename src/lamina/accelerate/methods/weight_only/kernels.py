"""Products whose weights are stored narrow and widened in registers.

The weights are the left operand, which tensor cores read from registers, so the wide ones never pass through shared
memory. An 8-bit code becomes a bfloat16 by moving its bits: its exponent is then too small by a constant, which its
inputs make good for. They are few, and are multiplied by half of that power of two, the sums by the other half, so
that neither leaves float32's range.

Common compile-time switches: ``FORMAT`` one of `FORMATS`; ``BITS`` of exponent of an 8-bit code; ``LIFT`` the power
of two that inputs are multiplied by, ``LOWER`` the one for sums; ``PRECISION`` of float32 products; ``UPCAST``
computes narrow types in float32 (the interpreter cannot multiply bf16); ``INDEX`` the type of addresses.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.runtime.triton_utils import rounded
from lamina.spec import Cost

FORMATS = ("narrow", "upper", "half")
"""How ``codes`` are read: 8 bits, the upper half of a float32, IEEE half."""


@triton.jit
@no_type_check
def widened(codes, FORMAT: tl.constexpr, BITS: tl.constexpr, LIKE: tl.constexpr):
    """Codes as numbers of type ``LIKE``; those of 8 bits are too small by a power of two."""
    if FORMAT == "half":
        numbers = codes.to(LIKE)
    else:
        if FORMAT == "narrow":
            wide = codes.to(tl.int16)
            bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << BITS)
        else:
            bits = codes
        if tl.float32 == LIKE:
            numbers = (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
        else:
            numbers = bits.to(tl.bfloat16, bitcast=True)
    return numbers


@triton.jit
@no_type_check
def finish(
    sums, scale, bias, y, output, row, outputs, rows, BIAS: tl.constexpr, INDEX: tl.constexpr, UPCAST: tl.constexpr
):
    """``y[row, output] = sums * scale + bias`` of a tile whose first axis is the outputs."""
    known = output < outputs
    sums = sums * tl.load(scale + output, known, 0.0)[:, None]
    if BIAS:
        sums += tl.load(bias + output, known, 0.0).to(tl.float32)[:, None]
    place = row.to(INDEX)[None, :] * outputs + output[:, None]
    tl.store(y + place, rounded(sums, y.dtype.element_ty, UPCAST), known[:, None] & (row < rows)[None, :])


@triton.jit
@no_type_check
def linear_kernel(
    codes, x, scale, bias, y, shares, outputs, rows, inputs, x_row, x_column,
    FORMAT: tl.constexpr, BITS: tl.constexpr, LIFT: tl.constexpr, LOWER: tl.constexpr, BIAS: tl.constexpr,
    SPLITS: tl.constexpr, BO: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``y (rows, outputs) = x (W * scale)^T + bias`` of ``codes (outputs, inputs)`` and ``x (rows, inputs)``.

    With ``SPLITS`` shares of the sum in ``shares [SPLITS, outputs, rows]``.
    """
    tiles = tl.cdiv(outputs, BO)
    tile = tl.program_id(0) % (tiles * tl.cdiv(rows, BR))
    split = tl.program_id(0) // (tiles * tl.cdiv(rows, BR))
    output = tile % tiles * BO + tl.arange(0, BO)
    row = tile // tiles * BR + tl.arange(0, BR)
    share = tl.cdiv(tl.cdiv(inputs, BK), SPLITS) * BK
    last = tl.minimum((split + 1) * share, inputs)
    weights = codes + output.to(INDEX)[:, None] * inputs
    columns = x + row.to(INDEX)[None, :] * x_row
    sums = tl.zeros((BO, BR), tl.float32)
    for k0 in range(split * share, last, BK):
        k = k0 + tl.arange(0, BK)
        stored = tl.load(weights + k[None, :], (output < outputs)[:, None] & (k < last)[None, :], 0)
        b = tl.load(columns + k.to(INDEX)[:, None] * x_column, (k < last)[:, None] & (row < rows)[None, :], 0.0)
        if UPCAST:
            b = b.to(tl.float32)
        a = widened(stored, FORMAT, BITS, b.dtype)
        b = (b * LIFT).to(b.dtype)
        sums = tl.dot(a, b, sums, input_precision=PRECISION, out_dtype=tl.float32)
    if SPLITS > 1:
        place = (split.to(INDEX) * outputs + output.to(INDEX)[:, None]) * rows + row[None, :]
        tl.store(shares + place, sums * LOWER, (output < outputs)[:, None] & (row < rows)[None, :])
    else:
        finish(sums * LOWER, scale, bias, y, output, row, outputs, rows, BIAS, INDEX, UPCAST)


@triton.jit
@no_type_check
def pair_kernel(
    words, x, scale, bias, y, shares, outputs, rows, inputs, half, x_row, x_column,
    BIAS: tl.constexpr, SPLITS: tl.constexpr, BO: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """`linear_kernel` for words that hold inputs ``k`` and ``k + half``, the upper one read without a mask."""
    tiles = tl.cdiv(outputs, BO)
    tile = tl.program_id(0) % (tiles * tl.cdiv(rows, BR))
    split = tl.program_id(0) // (tiles * tl.cdiv(rows, BR))
    output = tile % tiles * BO + tl.arange(0, BO)
    row = tile // tiles * BR + tl.arange(0, BR)
    share = tl.cdiv(tl.cdiv(half, BK), SPLITS) * BK
    last = tl.minimum((split + 1) * share, half)
    weights = words + output.to(INDEX)[:, None] * half
    columns = x + row.to(INDEX)[None, :] * x_row
    sums = tl.zeros((BO, BR), tl.float32)
    for k0 in range(split * share, last, BK):
        k = k0 + tl.arange(0, BK)
        word = tl.load(weights + k[None, :], (output < outputs)[:, None] & (k < last)[None, :], 0)
        here = (k < last)[:, None] & (row < rows)[None, :]
        there = here & (k + half < inputs)[:, None]
        low = tl.load(columns + k.to(INDEX)[:, None] * x_column, here, 0.0).to(tl.float32)
        high = tl.load(columns + (k + half).to(INDEX)[:, None] * x_column, there, 0.0).to(tl.float32)
        sums = tl.dot((word << 16).to(tl.float32, bitcast=True), low, sums, input_precision=PRECISION)
        sums = tl.dot(word.to(tl.float32, bitcast=True), high, sums, input_precision=PRECISION)
    if SPLITS > 1:
        place = (split.to(INDEX) * outputs + output.to(INDEX)[:, None]) * rows + row[None, :]
        tl.store(shares + place, sums, (output < outputs)[:, None] & (row < rows)[None, :])
    else:
        finish(sums, scale, bias, y, output, row, outputs, rows, BIAS, INDEX, UPCAST)


@triton.jit
@no_type_check
def finish_kernel(
    shares, scale, bias, y, outputs, rows,
    BIAS: tl.constexpr, SPLITS: tl.constexpr, BO: tl.constexpr, BR: tl.constexpr,
    UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Add the shares of a sum in their order, then scale and bias."""
    tiles = tl.cdiv(outputs, BO)
    output = tl.program_id(0) % tiles * BO + tl.arange(0, BO)
    row = tl.program_id(0) // tiles * BR + tl.arange(0, BR)
    known = (output < outputs)[:, None] & (row < rows)[None, :]
    sums = tl.zeros((BO, BR), tl.float32)
    for split in tl.static_range(SPLITS):
        place = (output.to(INDEX)[:, None] + split * outputs) * rows + row[None, :]
        sums += tl.load(shares + place, known, 0.0)
    finish(sums, scale, bias, y, output, row, outputs, rows, BIAS, INDEX, UPCAST)


def linear_cost(rows: int, outputs: int, inputs: int, itemsize: int, weight_bits: int, splits: int = 1) -> Cost:
    """Work of a product of ``rows`` rows of ``itemsize`` bytes with weights of ``weight_bits`` and a scale each."""
    shares = 4 * splits * rows * outputs if splits > 1 else 0
    read = outputs * inputs * weight_bits // 8 + rows * inputs * itemsize + 4 * outputs
    return Cost(2 * rows * outputs * inputs, read + shares, rows * outputs * itemsize + shares)

"""GEMMs whose weights are dequantized in registers.

The weights are the left operand, which tensor cores read from registers, so dequantized weights never pass through
shared memory. Shifting the bits of an 8-bit code gives a bfloat16 whose exponent is too small by a constant. Half of
the missing power of two is multiplied into the inputs, which are few, the other half into the accumulators, so that
neither leaves the range of float32.

Common constexprs: ``FORMAT`` is one of `FORMATS`; ``BITS``, the exponent bits of an 8-bit code; ``LIFT``, the power of
two for inputs, and ``LOWER`` the one for accumulators; ``PRECISION`` of float32 products; ``UPCAST`` computes 16-bit
types in float32, since the interpreter cannot multiply bf16; ``INDEX`` is the integer type of offsets.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.runtime.triton_utils import rounded
from lamina.spec import Cost

FORMATS = ("narrow", "upper", "half")
"""Formats of ``codes``: 8 bits, the upper 16 bits of a float32, IEEE half."""


@triton.jit
@no_type_check
def dequantized(codes, FORMAT: tl.constexpr, BITS: tl.constexpr, LIKE: tl.constexpr):
    """Codes as values of type ``LIKE``; 8-bit ones are too small by a constant power of two."""
    if FORMAT == "half":
        values = codes.to(LIKE)
    else:
        if FORMAT == "narrow":
            wide = codes.to(tl.int16)
            bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << BITS)
        else:
            bits = codes
        if tl.float32 == LIKE:
            values = (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
        else:
            values = bits.to(tl.bfloat16, bitcast=True)
    return values


@triton.jit
@no_type_check
def finish(
    sums, scale, bias, y, output, row, outputs, rows, BIAS: tl.constexpr, INDEX: tl.constexpr, UPCAST: tl.constexpr
):
    """``y[row, output] = sums * scale + bias`` of a tile whose first axis is the outputs."""
    mask = output < outputs
    sums = sums * tl.load(scale + output, mask, 0.0)[:, None]
    if BIAS:
        sums += tl.load(bias + output, mask, 0.0).to(tl.float32)[:, None]
    offsets = row.to(INDEX)[None, :] * outputs + output[:, None]
    tl.store(y + offsets, rounded(sums, y.dtype.element_ty, UPCAST), mask[:, None] & (row < rows)[None, :])


@triton.jit
@no_type_check
def linear_kernel(
    codes, x, scale, bias, y, partials, outputs, rows, inputs, x_row, x_column,
    FORMAT: tl.constexpr, BITS: tl.constexpr, LIFT: tl.constexpr, LOWER: tl.constexpr, BIAS: tl.constexpr,
    SPLIT_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``y (rows, outputs) = x (W * scale)^T + bias`` of ``codes (outputs, inputs)`` and ``x (rows, inputs)``.

    With ``SPLIT_K`` > 1, partial sums go to ``partials [SPLIT_K, outputs, rows]``.
    """
    tiles = tl.cdiv(outputs, BLOCK_M)
    tile = tl.program_id(0) % (tiles * tl.cdiv(rows, BLOCK_N))
    split = tl.program_id(0) // (tiles * tl.cdiv(rows, BLOCK_N))
    output = tile % tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    row = tile // tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    k_per_split = tl.cdiv(tl.cdiv(inputs, BLOCK_K), SPLIT_K) * BLOCK_K
    last = tl.minimum((split + 1) * k_per_split, inputs)
    weights = codes + output.to(INDEX)[:, None] * inputs
    columns = x + row.to(INDEX)[None, :] * x_row
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in range(split * k_per_split, last, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        stored = tl.load(weights + k[None, :], (output < outputs)[:, None] & (k < last)[None, :], 0)
        b = tl.load(columns + k.to(INDEX)[:, None] * x_column, (k < last)[:, None] & (row < rows)[None, :], 0.0)
        if UPCAST:
            b = b.to(tl.float32)
        a = dequantized(stored, FORMAT, BITS, b.dtype)
        b = (b * LIFT).to(b.dtype)
        sums = tl.dot(a, b, sums, input_precision=PRECISION, out_dtype=tl.float32)
    if SPLIT_K > 1:
        offsets = (split.to(INDEX) * outputs + output.to(INDEX)[:, None]) * rows + row[None, :]
        tl.store(partials + offsets, sums * LOWER, (output < outputs)[:, None] & (row < rows)[None, :])
    else:
        finish(sums * LOWER, scale, bias, y, output, row, outputs, rows, BIAS, INDEX, UPCAST)


@triton.jit
@no_type_check
def pair_kernel(
    words, x, scale, bias, y, partials, outputs, rows, inputs, half, x_row, x_column,
    BIAS: tl.constexpr, SPLIT_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """`linear_kernel` for words with the weights ``k`` and ``k + half``; the upper one is read without a mask."""
    tiles = tl.cdiv(outputs, BLOCK_M)
    tile = tl.program_id(0) % (tiles * tl.cdiv(rows, BLOCK_N))
    split = tl.program_id(0) // (tiles * tl.cdiv(rows, BLOCK_N))
    output = tile % tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    row = tile // tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    k_per_split = tl.cdiv(tl.cdiv(half, BLOCK_K), SPLIT_K) * BLOCK_K
    last = tl.minimum((split + 1) * k_per_split, half)
    weights = words + output.to(INDEX)[:, None] * half
    columns = x + row.to(INDEX)[None, :] * x_row
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in range(split * k_per_split, last, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        word = tl.load(weights + k[None, :], (output < outputs)[:, None] & (k < last)[None, :], 0)
        low_mask = (k < last)[:, None] & (row < rows)[None, :]
        high_mask = low_mask & (k + half < inputs)[:, None]
        low = tl.load(columns + k.to(INDEX)[:, None] * x_column, low_mask, 0.0).to(tl.float32)
        high = tl.load(columns + (k + half).to(INDEX)[:, None] * x_column, high_mask, 0.0).to(tl.float32)
        sums = tl.dot((word << 16).to(tl.float32, bitcast=True), low, sums, input_precision=PRECISION)
        sums = tl.dot(word.to(tl.float32, bitcast=True), high, sums, input_precision=PRECISION)
    if SPLIT_K > 1:
        offsets = (split.to(INDEX) * outputs + output.to(INDEX)[:, None]) * rows + row[None, :]
        tl.store(partials + offsets, sums, (output < outputs)[:, None] & (row < rows)[None, :])
    else:
        finish(sums, scale, bias, y, output, row, outputs, rows, BIAS, INDEX, UPCAST)


@triton.jit
@no_type_check
def finish_kernel(
    partials, scale, bias, y, outputs, rows,
    BIAS: tl.constexpr, SPLIT_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Reduce split-K partial sums in order, then apply scale and bias."""
    tiles = tl.cdiv(outputs, BLOCK_M)
    output = tl.program_id(0) % tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    row = tl.program_id(0) // tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (output < outputs)[:, None] & (row < rows)[None, :]
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for split in tl.static_range(SPLIT_K):
        offsets = (output.to(INDEX)[:, None] + split * outputs) * rows + row[None, :]
        sums += tl.load(partials + offsets, mask, 0.0)
    finish(sums, scale, bias, y, output, row, outputs, rows, BIAS, INDEX, UPCAST)


def linear_cost(rows: int, outputs: int, inputs: int, itemsize: int, weight_bits: int, split_k: int = 1) -> Cost:
    """FLOPs and bytes of ``rows`` rows of ``itemsize`` bytes times weights of ``weight_bits`` with scales."""
    partial_bytes = 4 * split_k * rows * outputs if split_k > 1 else 0
    read = outputs * inputs * weight_bits // 8 + rows * inputs * itemsize + 4 * outputs
    return Cost(2 * rows * outputs * inputs, read + partial_bytes, rows * outputs * itemsize + partial_bytes)

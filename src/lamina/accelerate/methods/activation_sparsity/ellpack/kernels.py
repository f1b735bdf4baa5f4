"""ELLPACK-DIB conversion, its inverse, and products of single non-zeros, for maps of any strides.

The constexprs are those of `activation_sparsity.kernels`.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.methods.activation_sparsity.kernels import im2col_tile
from lamina.accelerate.runtime.triton_utils import rounded
from lamina.spec import Cost


@triton.jit
@no_type_check
def scale_kernel(partial_amax, scales, num_partials, panels, TARGET_EXPONENT: tl.constexpr, BLOCK: tl.constexpr):
    """For each panel, the power of two that scales the amax to ``[2**TARGET_EXPONENT, 2**(TARGET_EXPONENT + 1))``."""
    partial = tl.arange(0, BLOCK)
    amax = tl.max(tl.load(partial_amax + partial, partial < num_partials, 0.0), axis=0)
    power = tl.minimum(tl.maximum((amax.to(tl.int32, bitcast=True) >> 23) - 127 - TARGET_EXPONENT, -120), 120)
    scale = tl.where(amax > 0, ((power + 127) << 23).to(tl.float32, bitcast=True), 1.0)
    for first in range(0, panels, BLOCK):
        panel = first + tl.arange(0, BLOCK)
        tl.store(scales + panel, tl.zeros((BLOCK,), tl.float32) + scale, panel < panels)


@triton.jit
@no_type_check
def to_ellpack_kernel(
    x, words, counts, scales, rows, columns, panel, capacity, channels, pixels, out_width, height, width,
    x_n, x_c, x_h, x_w,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, UNPADDED: tl.constexpr, IS_MATRIX: tl.constexpr, STORE: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Convert the columns of one panel to ELLPACK-DIB, rows ascending; without ``STORE`` only count non-zeros."""
    tiles = tl.cdiv(columns, BLOCK_N)
    column = tl.program_id(0) % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    p = tl.program_id(0) // tiles
    first = p * panel
    last = tl.minimum(first + panel, rows)
    if STORE:
        inverse = 1.0 / tl.load(scales + p)
    num_nonzeros = tl.zeros((BLOCK_N,), tl.int32)
    start = p.to(INDEX) * capacity * columns + column
    for k0 in range(first, last, BLOCK_K):
        row = k0 + tl.arange(0, BLOCK_K)
        value = im2col_tile(
            x, row, column, last, columns, channels, pixels, out_width, height, width, x_n, x_c, x_h, x_w,
            KH, KW, SH, SW, PH, PW, DH, DW, UNPADDED, IS_MATRIX, INDEX,
        ).to(tl.float32)  # fmt: skip
        present = (value != 0).to(tl.int32)
        if STORE:
            slot = num_nonzeros[None, :] + tl.cumsum(present, axis=0) - present
            value_bits = (value * inverse).to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
            word = ((row - first) << 16)[:, None] | value_bits
            offset = start[None, :] + slot.to(INDEX) * columns
            tl.store(words + offset, word, (present != 0) & (slot < capacity))
        num_nonzeros += tl.sum(present, axis=0)
    tl.store(counts + p.to(INDEX) * columns + column, num_nonzeros, column < columns)


@triton.jit
@no_type_check
def from_ellpack_kernel(
    words, counts, scales, y, columns, panel, capacity, pixels, y_n, y_c, y_p,
    BLOCK_N: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Write a map in ELLPACK-DIB to the zero-initialized ``y``; columns over capacity become NaN."""
    tiles = tl.cdiv(columns, BLOCK_N)
    column = tl.program_id(0) % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    p = tl.program_id(0) // tiles
    count = tl.load(counts + p.to(INDEX) * columns + column, column < columns, 0)
    scale = tl.where(count > capacity, float("nan"), tl.load(scales + p))
    start = p.to(INDEX) * capacity * columns + column
    base = (column // pixels).to(INDEX) * y_n + (column % pixels).to(INDEX) * y_p
    for slot in range(0, tl.minimum(tl.max(count, axis=0), capacity)):  # noqa: PIE808
        valid = slot < count
        word = tl.load(words + (start + tl.cast(slot, INDEX) * columns), valid, 0)
        value = (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * scale
        row = p * panel + ((word >> 16) & 0xFFFF)
        tl.store(y + (base + row.to(INDEX) * y_c), rounded(value, y.dtype.element_ty, UPCAST), valid)
    if capacity == 0:
        tl.store(y + (base + (p * panel).to(INDEX) * y_c), scale.to(y.dtype.element_ty), count > 0)


@triton.jit
@no_type_check
def nonzero_kernel(
    at, bias, words, counts, scales, y, outputs, columns, rows, panel, panels, capacity, sources, pixels, out_width,
    height, width, y_n, y_m, y_p,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    UNROLL: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``y[m, column] = bias[m] + sum over taps and non-zeros of at[tap * rows + row, m] * value``.

    The format holds the map itself, ``rows`` channels by ``sources`` pixels; each tap reads the column of its own
    pixel. Columns over capacity give NaN.
    """
    tiles_m = tl.cdiv(outputs, BLOCK_M)
    m = tl.program_id(0) % tiles_m * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) // tiles_m * BLOCK_N + tl.arange(0, BLOCK_N)
    image = column // pixels
    top = column % pixels // out_width * SH - PH
    left = column % pixels % out_width * SW - PW
    in_m = (m < outputs)[None, :]
    overflow = tl.zeros((BLOCK_N,), tl.int32)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for step in range(panels * KH * KW):
        p = step // (KH * KW)
        tap = step % (KH * KW)
        h = top + tap // KW * DH
        v = left + tap % KW * DW
        inside = (column < columns) & (h >= 0) & (h < height) & (v >= 0) & (v < width)
        source = image * (height * width) + h * width + v
        count = tl.load(counts + tl.cast(p, INDEX) * sources + source, inside, 0)
        overflow = tl.maximum(overflow, (count > capacity).to(tl.int32))
        count = tl.minimum(count, capacity)
        scale = tl.load(scales + p)
        start = tl.cast(p, INDEX) * capacity * sources + source
        weight_row = tl.cast(tap, INDEX) * rows + p * panel
        for first in range(0, tl.max(count, axis=0), UNROLL):
            for unrolled in tl.static_range(UNROLL):
                slot = first + unrolled
                valid = slot < count
                word = tl.load(words + (start + tl.cast(slot, INDEX) * sources), valid, 0)
                value = (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * scale
                offset = (weight_row + ((word >> 16) & 0xFFFF)).to(INDEX) * outputs
                a = tl.load(at + (offset[:, None] + m[None, :]), valid[:, None] & in_m, 0.0).to(tl.float32)
                acc += tl.where(valid, value, 0.0)[:, None] * a
    if BIAS:
        acc += tl.load(bias + m, m < outputs, 0.0).to(tl.float32)[None, :]
    acc = tl.where((overflow > 0)[:, None], float("nan"), acc)
    offset = (image.to(INDEX) * y_n + (column % pixels).to(INDEX) * y_p)[:, None] + (m.to(INDEX) * y_m)[None, :]
    tl.store(y + offset, rounded(acc, y.dtype.element_ty, UPCAST), (column < columns)[:, None] & in_m)


def to_ellpack_cost(rows: int, columns: int, nonzeros: int, io_bytes: int, panels: int = 1) -> Cost:
    """Reads the operand; writes a word for each non-zero and a count for each column of a panel."""
    return Cost(0, rows * columns * io_bytes, 4 * nonzeros + 4 * panels * columns)


def nonzero_cost(
    outputs: int, columns: int, rows: int, nonzeros: int, weight_bytes: int, io_bytes: int, panels: int = 1
) -> Cost:
    """A multiply-add for each output of each non-zero; reads words, counts and weights once, writes the result."""
    read = 4 * nonzeros + 4 * panels * columns + outputs * rows * weight_bytes
    return Cost(2 * outputs * nonzeros, read, outputs * columns * io_bytes)

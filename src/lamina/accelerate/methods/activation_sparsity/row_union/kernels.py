"""Row-union products: a tile of columns multiplies the rows that hold a non-zero in any of them, on tensor cores.

The constexprs are those of `activation_sparsity.kernels`. ``X_TERMS`` and ``W_TERMS`` are the float16 terms of
activations and weights, 0 where they are 16-bit types themselves.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.common.split_fp16.kernels import split_hi_lo
from lamina.accelerate.methods.activation_sparsity.kernels import im2col_tile
from lamina.accelerate.methods.activation_sparsity.row_union.split_fp16.kernels import (
    descale,
    dot_split_fp16,
    finite_amax,
    has_nan,
    power_of_two,
    scale_exponent,
)
from lamina.accelerate.runtime.triton_utils import rounded
from lamina.spec import Cost


@triton.jit
@no_type_check
def row_flags_kernel(
    x, flags, partial_amax, rows, columns, channels, pixels, out_width, height, width, x_n, x_c, x_h, x_w,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, UNPADDED: tl.constexpr, IS_MATRIX: tl.constexpr, X_TERMS: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """For each tile of ``BLOCK_N`` columns, which rows hold a non-zero: int8 ``flags [tiles, rows]``.

    With split-fp16 also the finite amax of each block of rows, ``partial_amax [tiles, blocks]``.
    """
    blocks = tl.cdiv(rows, BLOCK_K)
    tile = tl.program_id(0) // blocks
    row = tl.program_id(0) % blocks * BLOCK_K + tl.arange(0, BLOCK_K)
    column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    value = im2col_tile(
        x, row, column, rows, columns, channels, pixels, out_width, height, width, x_n, x_c, x_h, x_w,
        KH, KW, SH, SW, PH, PW, DH, DW, UNPADDED, IS_MATRIX, INDEX,
    ).to(tl.float32)  # fmt: skip
    flag = tl.max((value != 0).to(tl.int32), axis=1)
    tl.store(flags + tile.to(INDEX) * rows + row, flag.to(tl.int8), row < rows)
    if X_TERMS:
        tl.store(partial_amax + tl.program_id(0), finite_amax(value))


@triton.jit
@no_type_check
def row_lists_kernel(flags, lists, lengths, rows, BLOCK_K: tl.constexpr, INDEX: tl.constexpr):
    """A tile's flags as an ascending list of rows."""
    tile = tl.program_id(0).to(INDEX)
    taken = 0
    for k0 in range(0, rows, BLOCK_K):
        row = k0 + tl.arange(0, BLOCK_K)
        flag = tl.load(flags + tile * rows + row, row < rows, 0).to(tl.int32)
        slot = taken + tl.cumsum(flag, axis=0) - flag
        tl.store(lists + tile * rows + slot, row, flag != 0)
        taken += tl.sum(flag, axis=0)
    tl.store(lengths + tile, taken)


@triton.jit
@no_type_check
def row_union_sums(
    at, at_lo, x, listed, length, scale, outputs, columns, rows, channels, pixels, out_width, height, width,
    x_n, x_c, x_h, x_w, m, column,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, UNPADDED: tl.constexpr, IS_MATRIX: tl.constexpr,
    X_TERMS: tl.constexpr, W_TERMS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """A tile ``[BLOCK_N, BLOCK_M]`` of the product over the listed rows."""
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    k = tl.arange(0, BLOCK_K)
    next_row = tl.load(listed + k, k < length, rows)
    for _ in range(0, length, BLOCK_K):
        row = next_row
        k += BLOCK_K
        next_row = tl.load(listed + k, k < length, rows)
        mask = (row < rows)[:, None] & (m < outputs)[None, :]
        offset = row.to(INDEX)[:, None] * outputs + m[None, :]
        a = tl.load(at + offset, mask, 0.0)
        a_lo = a
        if W_TERMS == 2:
            a_lo = tl.load(at_lo + offset, mask, 0.0)
        b = tl.trans(im2col_tile(
            x, row, column, rows, columns, channels, pixels, out_width, height, width, x_n, x_c, x_h, x_w,
            KH, KW, SH, SW, PH, PW, DH, DW, UNPADDED, IS_MATRIX, INDEX,
        ))  # fmt: skip
        b_lo = b
        if X_TERMS:
            b, b_lo = split_hi_lo(b.to(tl.float32) * scale)
        acc = dot_split_fp16(acc, b, b_lo, a, a_lo, X_TERMS, W_TERMS, UPCAST)
    return acc


@triton.jit
@no_type_check
def row_union_kernel(
    at, at_lo, at_amax, bias, x, partial_amax, lists, lengths, y, outputs, columns, rows, channels, num_partials,
    pixels, out_width, height, width, x_n, x_c, x_h, x_w, y_n, y_m, y_p, KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    UNPADDED: tl.constexpr, IS_MATRIX: tl.constexpr, BIAS: tl.constexpr, X_TERMS: tl.constexpr, W_TERMS: tl.constexpr,
    BLOCK_PARTIALS: tl.constexpr, W_PARTIALS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_SIZE_N: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``y[m, column] = bias[m] + sum of at[row, m] * x[row, column]`` over the rows that the column's tile lists.

    Programs are grouped by ``GROUP_SIZE_N`` column tiles for reuse in L2. Float32 activations are split in registers,
    each tile of columns with its own power-of-two scale.
    """
    tiles_m = tl.cdiv(outputs, BLOCK_M)
    tiles_n = tl.cdiv(columns, BLOCK_N)
    first_tile = tl.program_id(0) // (GROUP_SIZE_N * tiles_m) * GROUP_SIZE_N
    group_size = tl.minimum(tiles_n - first_tile, GROUP_SIZE_N)
    within = tl.program_id(0) % (GROUP_SIZE_N * tiles_m)
    tile = first_tile + within % group_size
    m = within // group_size * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    length = tl.load(lengths + tile)
    listed = lists + tile.to(INDEX) * rows
    own_amax = partial_amax + tile.to(INDEX) * num_partials
    exponent = scale_exponent(own_amax, num_partials, BLOCK_PARTIALS) if X_TERMS else 0
    scale = power_of_two(exponent) if X_TERMS else 1.0
    acc = row_union_sums(
        at, at_lo, x, listed, length, scale, outputs, columns, rows, channels, pixels, out_width, height, width, x_n,
        x_c, x_h, x_w, m, column, KH, KW, SH, SW, PH, PW, DH, DW, UNPADDED, IS_MATRIX, X_TERMS, W_TERMS, BLOCK_M,
        BLOCK_N, BLOCK_K, UPCAST, INDEX,
    )  # fmt: skip
    if W_TERMS == 2:  # noqa: SIM102
        if has_nan(acc):
            unsplit = row_union_sums(
                at, at_lo, x, listed, length, scale, outputs, columns, rows, channels, pixels, out_width, height, width,
                x_n, x_c, x_h, x_w, m, column, KH, KW, SH, SW, PH, PW, DH, DW, UNPADDED, IS_MATRIX, 1, 1, BLOCK_M,
                BLOCK_N, BLOCK_K, UPCAST, INDEX,
            )  # fmt: skip
            acc = tl.where(acc != acc, unsplit, acc)
    if X_TERMS:
        acc = descale(acc, exponent, at_amax, W_PARTIALS)
    if BIAS:
        acc += tl.load(bias + m, m < outputs, 0.0).to(tl.float32)[None, :]
    offset = (column // pixels).to(INDEX) * y_n + (column % pixels).to(INDEX) * y_p
    mask = (column < columns)[:, None] & (m < outputs)[None, :]
    tl.store(y + (offset[:, None] + (m.to(INDEX) * y_m)[None, :]), rounded(acc, y.dtype.element_ty, UPCAST), mask)


@triton.jit
@no_type_check
def masked_sums(
    at, at_lo, dc, scale, outputs, columns, rows, dc_m, dc_n, row, column,
    X_TERMS: tl.constexpr, W_TERMS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """A tile ``[BLOCK_N, BLOCK_K]`` of the product, for the listed rows."""
    acc = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for m0 in range(0, outputs, BLOCK_M):
        m = m0 + tl.arange(0, BLOCK_M)
        offset = row.to(INDEX)[:, None] * outputs + m[None, :]
        mask = (row < rows)[:, None] & (m < outputs)[None, :]
        a = tl.trans(tl.load(at + offset, mask, 0.0))
        a_lo = a
        if W_TERMS == 2:
            a_lo = tl.trans(tl.load(at_lo + offset, mask, 0.0))
        offset = (m.to(INDEX) * dc_m)[:, None] + (column.to(INDEX) * dc_n)[None, :]
        d = tl.trans(tl.load(dc + offset, (m < outputs)[:, None] & (column < columns)[None, :], 0.0))
        d_lo = d
        if X_TERMS:
            d, d_lo = split_hi_lo(d.to(tl.float32) * scale)
        acc = dot_split_fp16(acc, d, d_lo, a, a_lo, X_TERMS, W_TERMS, UPCAST)
    return acc


@triton.jit
@no_type_check
def masked_kernel(
    at, at_lo, at_amax, x, lists, lengths, dc, dc_amax, db, outputs, columns, rows, num_partials, x_k, x_n, dc_m, dc_n,
    X_TERMS: tl.constexpr, W_TERMS: tl.constexpr, BLOCK_PARTIALS: tl.constexpr, W_PARTIALS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``db[row, column] = sum over m of at[row, m] * dc[m, column]`` where ``x[row, column]`` is not zero.

    Only the listed rows of a tile of columns are computed; ``db (rows, columns)`` is zero-initialized.
    """
    blocks = tl.cdiv(rows, BLOCK_K)
    tile = tl.program_id(0) // blocks
    k = tl.program_id(0) % blocks * BLOCK_K + tl.arange(0, BLOCK_K)
    length = tl.load(lengths + tile)
    if tl.program_id(0) % blocks * BLOCK_K < length:
        column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        row = tl.load(lists + tile.to(INDEX) * rows + k, k < length, rows)
        exponent = scale_exponent(dc_amax, num_partials, BLOCK_PARTIALS) if X_TERMS else 0
        scale = power_of_two(exponent) if X_TERMS else 1.0
        acc = masked_sums(
            at, at_lo, dc, scale, outputs, columns, rows, dc_m, dc_n, row, column, X_TERMS, W_TERMS, BLOCK_M, BLOCK_N,
            BLOCK_K, UPCAST, INDEX
        )  # fmt: skip
        if W_TERMS == 2:  # noqa: SIM102
            if has_nan(acc):
                unsplit = masked_sums(
                    at, at_lo, dc, scale, outputs, columns, rows, dc_m, dc_n, row, column, 1, 1, BLOCK_M, BLOCK_N,
                    BLOCK_K, UPCAST, INDEX
                )  # fmt: skip
                acc = tl.where(acc != acc, unsplit, acc)
        if X_TERMS:
            acc = descale(acc, exponent, at_amax, W_PARTIALS)
        mask = (column < columns)[:, None] & (row < rows)[None, :]
        value = tl.load(x + ((column.to(INDEX) * x_n)[:, None] + (row.to(INDEX) * x_k)[None, :]), mask, 0.0)
        offset = column[:, None] + row.to(INDEX)[None, :] * columns
        tl.store(db + offset, rounded(acc, db.dtype.element_ty, UPCAST), mask & (value.to(tl.float32) != 0))


def row_union_cost(outputs: int, columns: int, rows: int, listed: int, width: int, io_bytes: int) -> Cost:
    """A multiply-add for each output in each column of each listed row; reads weights, listed rows and lists once."""
    elements = outputs * rows + listed * width
    return Cost(2 * outputs * listed * width, elements * io_bytes + 4 * listed, outputs * columns * io_bytes)

"""Matmuls with materialized circulant blocks: built per tile in registers, or once as a dense matrix in memory.

``w (p, q, K)`` holds the first columns of ``p`` by ``q`` blocks of size ``K``. With ``SIGN_FLIPS``, ``signs (K)``
multiply the columns of each materialized block. Constexprs are those of `spectral.kernels`.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.common.split_fp16.kernels import load_scale, split_hi_lo
from lamina.accelerate.runtime.triton_utils import griddepcontrol, rounded
from lamina.spec import Cost


@triton.jit
@no_type_check
def linear_tile(
    tile, a, w, out, rows, out_features, in_features, q, stride_row, stride_column,
    K: tl.constexpr, BACKWARD_DATA: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """A tile of ``a W^T``, or with ``BACKWARD_DATA`` of ``a W``; tiles of ``W`` are gathered from ``w (p, q, K)``."""
    if BACKWARD_DATA:
        summed, kept = out_features, in_features
    else:
        summed, kept = in_features, out_features
    tiles_n = tl.cdiv(kept, BLOCK_N)
    row = tile // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for s0 in range(0, summed, BLOCK_K):
        s = s0 + tl.arange(0, BLOCK_K)
        pointers = a + row.to(INDEX)[:, None] * stride_row + s.to(INDEX)[None, :] * stride_column
        values = tl.load(pointers, (row < rows)[:, None] & (s < summed)[None, :], 0.0)
        if BACKWARD_DATA:
            block = s[:, None] // K * q + column[None, :] // K
            offset = s[:, None] % K - column[None, :] % K
        else:
            block = column[None, :] // K * q + s[:, None] // K
            offset = column[None, :] % K - s[:, None] % K
        w_pointers = w + block * K + tl.where(offset < 0, offset + K, offset)
        weights = tl.load(w_pointers, (s < summed)[:, None] & (column < kept)[None, :], 0.0).to(values.dtype)
        if UPCAST:
            values, weights = values.to(ACC), weights.to(ACC)
        acc = tl.dot(values, weights, acc, input_precision=PRECISION, out_dtype=ACC)
    pointers = out + row.to(INDEX)[:, None] * kept + column[None, :]
    mask = (row < rows)[:, None] & (column < kept)[None, :]
    tl.store(pointers, rounded(acc, out.dtype.element_ty, UPCAST), mask)


@triton.jit
@no_type_check
def linear_weight_tile(
    tile, dy, x, out, rows, out_features, in_features, q, dy_row, dy_column, x_row, x_column,
    K: tl.constexpr, PADDED_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """One block of the gradient ``(p, q, K)``: the sums of the wrapped diagonals of the dense gradient.

    ``PADDED_K >= K`` is a power of two.
    """
    i = tl.arange(0, PADDED_K)
    channel = tile // q * K + i
    acc = tl.zeros((PADDED_K,), ACC)
    for c0 in range(0, K, BLOCK_N):
        c = c0 + tl.arange(0, BLOCK_N)
        column = tile % q * K + c
        dense = tl.zeros((PADDED_K, BLOCK_N), ACC)
        for r0 in range(0, rows, BLOCK_K):
            row = r0 + tl.arange(0, BLOCK_K)
            pointers = dy + row.to(INDEX)[None, :] * dy_row + channel.to(INDEX)[:, None] * dy_column
            gradients = tl.load(pointers, ((i < K) & (channel < out_features))[:, None] & (row < rows)[None, :], 0.0)
            pointers = x + row.to(INDEX)[:, None] * x_row + column.to(INDEX)[None, :] * x_column
            inputs = tl.load(pointers, (row < rows)[:, None] & ((c < K) & (column < in_features))[None, :], 0.0)
            if UPCAST:
                gradients, inputs = gradients.to(ACC), inputs.to(ACC)
            dense = tl.dot(gradients, inputs, dense, input_precision=PRECISION, out_dtype=ACC)
        acc += tl.sum(tl.gather(dense, (c[None, :] + i[:, None]) % K, 0), 1)
    tl.store(out + tile * K + i, rounded(acc, out.dtype.element_ty, UPCAST), i < K)


@triton.jit
@no_type_check
def linear_kernel(
    a, w, out, rows, out_features, in_features, q, stride_row, stride_column,
    K: tl.constexpr, BACKWARD_DATA: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The linear layer, or with ``BACKWARD_DATA`` its input gradient."""
    griddepcontrol(PDL)
    linear_tile(
        tl.program_id(0), a, w, out, rows, out_features, in_features, q, stride_row, stride_column,
        K, BACKWARD_DATA, BLOCK_M, BLOCK_N, BLOCK_K, ACC, PRECISION, UPCAST, INDEX,
    )  # fmt: skip


@triton.jit
@no_type_check
def linear_backward_kernel(
    dy, x, w, dx, dw, data_tiles, rows, out_features, in_features, q, dy_row, dy_column, x_row, x_column,
    K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PADDED_K: tl.constexpr, W_BLOCK_N: tl.constexpr, W_BLOCK_K: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Both gradients in one launch; without data tiles, the weight gradient alone."""
    griddepcontrol(PDL)
    tile = tl.program_id(0)
    if tile < data_tiles:
        linear_tile(
            tile, dy, w, dx, rows, out_features, in_features, q, dy_row, dy_column,
            K, True, BLOCK_M, BLOCK_N, BLOCK_K, ACC, PRECISION, UPCAST, INDEX,
        )  # fmt: skip
    else:
        linear_weight_tile(
            tile - data_tiles, dy, x, dw, rows, out_features, in_features, q, dy_row, dy_column, x_row, x_column,
            K, PADDED_K, W_BLOCK_N, W_BLOCK_K, ACC, PRECISION, UPCAST, INDEX,
        )  # fmt: skip


def linear_cost(rows: int, out_features: int, in_features: int, block_size: int, io_bytes: int) -> Cost:
    """The FLOPs of a dense matmul and the bytes of a circulant one."""
    weights = -(-out_features // block_size) * -(-in_features // block_size) * block_size
    return Cost(
        2 * rows * out_features * in_features,
        (rows * in_features + weights) * io_bytes,
        rows * out_features * io_bytes,
    )


@triton.jit
@no_type_check
def dense_elements(
    w, signs, channel, tap, column, mask, out_features, p, q, TAPS: tl.constexpr, K: tl.constexpr,
    SIGN_FLIPS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Elements of the dense matrix of ``w (G*p, TAPS, q, K)``, whose groups have ``out_features`` rows each."""
    row = channel % out_features
    offset = row % K - column % K
    block = ((channel // out_features * p + row // K) * TAPS + tap) * q + column // K
    values = tl.load(w + block * K + tl.where(offset < 0, offset + K, offset), mask)
    if SIGN_FLIPS:
        values = (values.to(ACC) * tl.load(signs + column % K, mask).to(ACC)).to(values.dtype)
    return values


@triton.jit
@no_type_check
def dense_matrix_kernel(
    w, signs, out, size, out_features, in_features, p, q, TAPS: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, SIGN_FLIPS: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The dense matrix ``(G*out_features, in_features, taps)`` of ``w (G*p, taps, q, K)``; inputs may be innermost."""
    griddepcontrol(PDL)
    offsets = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    tap = offsets // in_features % TAPS if CHANNELS_LAST else offsets % TAPS
    column = offsets % in_features if CHANNELS_LAST else offsets // TAPS % in_features
    mask = offsets < size
    channel = offsets // (TAPS * in_features)
    values = dense_elements(w, signs, channel, tap, column, mask, out_features, p, q, TAPS, K, SIGN_FLIPS, ACC)
    tl.store(out + offsets, values, mask)


@triton.jit
@no_type_check
def split_dense_matrix_kernel(
    w, signs, partial_amax, out, size, out_features, in_features, p, q, TAPS: tl.constexpr, K: tl.constexpr,
    BLOCK: tl.constexpr, SIGN_FLIPS: tl.constexpr, TERMS: tl.constexpr, PARTIALS: tl.constexpr,
    TARGET_EXPONENT: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """The split ``[TERMS, G*out_features, TAPS, in_features]`` of the dense matrix of float32 ``w``."""
    offsets = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    tap = offsets // in_features % TAPS
    mask = offsets < size
    channel, column = offsets // (TAPS * in_features), offsets % in_features
    values = dense_elements(w, signs, channel, tap, column, mask, out_features, p, q, TAPS, K, SIGN_FLIPS, tl.float32)
    hi, lo = split_hi_lo(values * load_scale(partial_amax, PARTIALS, TARGET_EXPONENT)[0])
    tl.store(out + offsets, hi, mask)
    if TERMS == 2:
        tl.store(out + size + offsets, lo, mask)


@triton.jit
@no_type_check
def diagonal_sums_kernel(
    dense, signs, out, size, out_features, in_features, p, q, TAPS: tl.constexpr, K: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_T: tl.constexpr, CHANNELS_LAST: tl.constexpr, SIGN_FLIPS: tl.constexpr,
    ACC: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The transpose of `dense_matrix_kernel`: the sum of each wrapped diagonal of each block."""
    griddepcontrol(PDL)
    # Consecutive outputs read consecutive elements of a row of the dense matrix: taps or offsets within a block.
    offsets = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    tap = offsets // (K * q) % TAPS if CHANNELS_LAST else offsets % TAPS
    offset = offsets % K if CHANNELS_LAST else offsets // TAPS % K
    j = offsets // K % q if CHANNELS_LAST else offsets // (TAPS * K) % q
    channel = offsets // (TAPS * K * q)
    acc = tl.zeros((BLOCK,), ACC)
    for t0 in range(0, K, BLOCK_T):
        t = t0 + tl.arange(0, BLOCK_T)[:, None]
        row = (channel % p * K)[None, :] + t
        inner = (t - offset[None, :] + K) % K
        column = (j * K)[None, :] + inner
        mask = (offsets < size)[None, :] & (t < K) & (row < out_features) & (column < in_features)
        channels = (channel // p * out_features)[None, :] + row
        if CHANNELS_LAST:
            source = (channels * TAPS + tap[None, :]) * in_features + column
        else:
            source = (channels * in_features + column) * TAPS + tap[None, :]
        values = tl.load(dense + source, mask, 0.0).to(ACC)
        if SIGN_FLIPS:
            values *= tl.load(signs + inner, mask, 0.0).to(ACC)
        acc += tl.sum(values, 0)
    target = ((channel * TAPS + tap) * q + j) * K + offset
    tl.store(out + target, rounded(acc, out.dtype.element_ty, UPCAST), offsets < size)


def dense_matrix_cost(weights: int, dense: int, io_bytes: int) -> Cost:
    """The cost of materializing the dense matrix; its transpose adds as many elements."""
    return Cost(0, weights * io_bytes, dense * io_bytes)

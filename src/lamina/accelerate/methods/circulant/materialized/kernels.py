"""Products with circulant blocks written out: in registers where a tile needs them, or once in memory.

``w (p, q, K)`` holds the first columns of ``p`` by ``q`` blocks of size ``K``; where ``SIGNED``, ``signs (K)`` multiply
the columns of each block that is written out. Compile-time switches are those of the
frequency kernels.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.common.split_fp16.kernels import halves, scale
from lamina.accelerate.runtime.triton_utils import rounded, wait
from lamina.spec import Cost


@triton.jit
@no_type_check
def expand_tile(
    tile, a, w, out, rows, out_features, in_features, q, stride_row, stride_column,
    K: tl.constexpr, BACK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """A tile of ``a W^T``, or with ``BACK`` of ``a W``, gathering circulant tiles of ``W`` from ``w (p, q, K)``."""
    if BACK:
        summed, kept = out_features, in_features
    else:
        summed, kept = in_features, out_features
    tiles_n = tl.cdiv(kept, BN)
    row = tile // tiles_n * BM + tl.arange(0, BM)
    column = tile % tiles_n * BN + tl.arange(0, BN)
    sums = tl.zeros((BM, BN), ACC)
    for s0 in range(0, summed, BK):
        s = s0 + tl.arange(0, BK)
        here = a + row.to(INDEX)[:, None] * stride_row + s.to(INDEX)[None, :] * stride_column
        values = tl.load(here, (row < rows)[:, None] & (s < summed)[None, :], 0.0)
        if BACK:
            block = s[:, None] // K * q + column[None, :] // K
            offset = s[:, None] % K - column[None, :] % K
        else:
            block = column[None, :] // K * q + s[:, None] // K
            offset = column[None, :] % K - s[:, None] % K
        there = w + block * K + tl.where(offset < 0, offset + K, offset)
        weights = tl.load(there, (s < summed)[:, None] & (column < kept)[None, :], 0.0).to(values.dtype)
        if UPCAST:
            values, weights = values.to(ACC), weights.to(ACC)
        sums = tl.dot(values, weights, sums, input_precision=PRECISION, out_dtype=ACC)
    place = out + row.to(INDEX)[:, None] * kept + column[None, :]
    known = (row < rows)[:, None] & (column < kept)[None, :]
    tl.store(place, rounded(sums, out.dtype.element_ty, UPCAST), known)


@triton.jit
@no_type_check
def expand_weight_tile(
    tile, dy, x, out, rows, out_features, in_features, q, dy_row, dy_column, x_row, x_column,
    K: tl.constexpr, SIDE: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """One block of the gradient ``(p, q, K)``: the dense gradient of ``SIDE >= K`` rows, and its wrapped diagonals."""
    i = tl.arange(0, SIDE)
    channel = tile // q * K + i
    sums = tl.zeros((SIDE,), ACC)
    for c0 in range(0, K, BN):
        c = c0 + tl.arange(0, BN)
        column = tile % q * K + c
        dense = tl.zeros((SIDE, BN), ACC)
        for r0 in range(0, rows, BK):
            row = r0 + tl.arange(0, BK)
            here = dy + row.to(INDEX)[None, :] * dy_row + channel.to(INDEX)[:, None] * dy_column
            gradients = tl.load(here, ((i < K) & (channel < out_features))[:, None] & (row < rows)[None, :], 0.0)
            here = x + row.to(INDEX)[:, None] * x_row + column.to(INDEX)[None, :] * x_column
            inputs = tl.load(here, (row < rows)[:, None] & ((c < K) & (column < in_features))[None, :], 0.0)
            if UPCAST:
                gradients, inputs = gradients.to(ACC), inputs.to(ACC)
            dense = tl.dot(gradients, inputs, dense, input_precision=PRECISION, out_dtype=ACC)
        sums += tl.sum(tl.gather(dense, (c[None, :] + i[:, None]) % K, 0), 1)
    tl.store(out + tile * K + i, rounded(sums, out.dtype.element_ty, UPCAST), i < K)


@triton.jit
@no_type_check
def expand_kernel(
    a, w, out, rows, out_features, in_features, q, stride_row, stride_column,
    K: tl.constexpr, BACK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The product, or with ``BACK`` the input gradient."""
    wait(EARLY)
    expand_tile(
        tl.program_id(0), a, w, out, rows, out_features, in_features, q, stride_row, stride_column,
        K, BACK, BM, BN, BK, ACC, PRECISION, UPCAST, INDEX,
    )  # fmt: skip


@triton.jit
@no_type_check
def expand_grads_kernel(
    dy, x, w, dx, dw, data_tiles, rows, out_features, in_features, q, dy_row, dy_column, x_row, x_column,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SIDE: tl.constexpr, W_BN: tl.constexpr, W_BK: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Both gradients in one launch; without data tiles, the weight gradient alone."""
    wait(EARLY)
    tile = tl.program_id(0)
    if tile < data_tiles:
        expand_tile(
            tile, dy, w, dx, rows, out_features, in_features, q, dy_row, dy_column,
            K, True, BM, BN, BK, ACC, PRECISION, UPCAST, INDEX,
        )  # fmt: skip
    else:
        expand_weight_tile(
            tile - data_tiles, dy, x, dw, rows, out_features, in_features, q, dy_row, dy_column, x_row, x_column,
            K, SIDE, W_BN, W_BK, ACC, PRECISION, UPCAST, INDEX,
        )  # fmt: skip


def expand_cost(rows: int, out_features: int, in_features: int, block_size: int, io_bytes: int) -> Cost:
    """A dense product's operations on a circulant product's bytes."""
    weights = -(-out_features // block_size) * -(-in_features // block_size) * block_size
    return Cost(
        2 * rows * out_features * in_features,
        (rows * in_features + weights) * io_bytes,
        rows * out_features * io_bytes,
    )


@triton.jit
@no_type_check
def numbers(
    w, signs, channel, tap, column, known, out_features, p, q, TAPS: tl.constexpr, K: tl.constexpr,
    SIGNED: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Numbers of the dense matrix of ``w (G*p, TAPS, q, K)``, whose groups have ``out_features`` rows each."""
    row = channel % out_features
    offset = row % K - column % K
    block = ((channel // out_features * p + row // K) * TAPS + tap) * q + column // K
    values = tl.load(w + block * K + tl.where(offset < 0, offset + K, offset), known)
    if SIGNED:
        values = (values.to(ACC) * tl.load(signs + column % K, known).to(ACC)).to(values.dtype)
    return values


@triton.jit
@no_type_check
def materialise_kernel(
    w, signs, out, size, out_features, in_features, p, q, TAPS: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
    LAST: tl.constexpr, SIGNED: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The dense matrix ``(G*out_features, in_features, taps)`` of ``w (G*p, taps, q, K)``, or inputs ``LAST``."""
    wait(EARLY)
    place = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    tap = place // in_features % TAPS if LAST else place % TAPS
    column = place % in_features if LAST else place // TAPS % in_features
    known = place < size
    channel = place // (TAPS * in_features)
    values = numbers(w, signs, channel, tap, column, known, out_features, p, q, TAPS, K, SIGNED, ACC)
    tl.store(out + place, values, known)


@triton.jit
@no_type_check
def materialise_halves_kernel(
    w, signs, peaks, out, size, out_features, in_features, p, q, TAPS: tl.constexpr, K: tl.constexpr,
    BLOCK: tl.constexpr, SIGNED: tl.constexpr, PARTS: tl.constexpr, SHARES: tl.constexpr, TOP: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """The halves ``[PARTS, G*out_features, TAPS, in_features]`` of the dense matrix of float32 ``w``."""
    place = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    tap = place // in_features % TAPS
    known = place < size
    channel, column = place // (TAPS * in_features), place % in_features
    values = numbers(w, signs, channel, tap, column, known, out_features, p, q, TAPS, K, SIGNED, tl.float32)
    high, rest = halves(values * scale(peaks, SHARES, TOP)[0])
    tl.store(out + place, high, known)
    if PARTS == 2:
        tl.store(out + size + place, rest, known)


@triton.jit
@no_type_check
def diagonal_sums_kernel(
    dense, signs, out, size, out_features, in_features, p, q, TAPS: tl.constexpr, K: tl.constexpr,
    BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, LAST: tl.constexpr, SIGNED: tl.constexpr, ACC: tl.constexpr,
    UPCAST: tl.constexpr, INDEX: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The transpose of `materialise_kernel`: each wrapped diagonal of each block, summed."""
    wait(EARLY)
    # Neighbours stand for neighbours of a row of the dense matrix: taps and offsets, of which a row has each once.
    place = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    tap = place // (K * q) % TAPS if LAST else place % TAPS
    offset = place % K if LAST else place // TAPS % K
    j = place // K % q if LAST else place // (TAPS * K) % q
    channel = place // (TAPS * K * q)
    sums = tl.zeros((BLOCK,), ACC)
    for t0 in range(0, K, AT_ONCE):
        t = t0 + tl.arange(0, AT_ONCE)[:, None]
        row = (channel % p * K)[None, :] + t
        inner = (t - offset[None, :] + K) % K
        column = (j * K)[None, :] + inner
        known = (place < size)[None, :] & (t < K) & (row < out_features) & (column < in_features)
        channels = (channel // p * out_features)[None, :] + row
        if LAST:
            source = (channels * TAPS + tap[None, :]) * in_features + column
        else:
            source = (channels * in_features + column) * TAPS + tap[None, :]
        values = tl.load(dense + source, known, 0.0).to(ACC)
        if SIGNED:
            values *= tl.load(signs + inner, known, 0.0).to(ACC)
        sums += tl.sum(values, 0)
    target = ((channel * TAPS + tap) * q + j) * K + offset
    tl.store(out + target, rounded(sums, out.dtype.element_ty, UPCAST), place < size)


def materialise_cost(weights: int, dense: int, io_bytes: int) -> Cost:
    """Writing out the dense matrix; its transpose adds as many numbers."""
    return Cost(0, weights * io_bytes, dense * io_bytes)

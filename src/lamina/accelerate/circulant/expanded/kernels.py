"""Products with circulant blocks written out: in registers where a tile needs them, or once in memory.

``w (p, q, K)`` holds the first columns of ``p`` by ``q`` blocks of size ``K``. Compile-time switches are those of the
frequency kernels.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.circulant.kernels import wait
from lamina.accelerate.kernels import rounded
from lamina.spec import Cost


@triton.jit
@no_type_check
def expand_kernel(
    a, w, out, rows, out_features, in_features, q, stride_row, stride_column,
    K: tl.constexpr, BACK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """``a W^T``, or with ``BACK`` ``a W``, gathering circulant tiles of ``W`` from ``w (p, q, K)``."""
    wait(EARLY)
    if BACK:
        summed, kept = out_features, in_features
    else:
        summed, kept = in_features, out_features
    tiles_n = tl.cdiv(kept, BN)
    row = tl.program_id(0) // tiles_n * BM + tl.arange(0, BM)
    column = tl.program_id(0) % tiles_n * BN + tl.arange(0, BN)
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
def expand_weight_kernel(
    dy, x, out, rows, out_features, in_features, p, q, dy_row, dy_column, x_row, x_column,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Gradient ``(p, q, K)``: for each block and offset, ``dy`` that many columns on, times ``x``, summed over both.

    A row of the product is an output block and an offset, its summed axis an example and a place in the block.
    """
    wait(EARLY)
    tiles_n = tl.cdiv(q, BN)
    m = tl.program_id(0) // tiles_n * BM + tl.arange(0, BM)
    j = tl.program_id(0) % tiles_n * BN + tl.arange(0, BN)
    sums = tl.zeros((BM, BN), ACC)
    for s0 in range(0, rows * K, BK):
        s = s0 + tl.arange(0, BK)
        example = (s // K).to(INDEX)
        column = (m // K * K)[:, None] + (s[None, :] + m[:, None]) % K
        known = (m < p * K)[:, None] & (s < rows * K)[None, :] & (column < out_features)
        gradients = tl.load(dy + example[None, :] * dy_row + column.to(INDEX) * dy_column, known, 0.0)
        column = j[None, :] * K + s[:, None] % K
        known = (s < rows * K)[:, None] & (column < in_features)
        inputs = tl.load(x + example[:, None] * x_row + column.to(INDEX) * x_column, known, 0.0)
        if UPCAST:
            gradients, inputs = gradients.to(ACC), inputs.to(ACC)
        sums = tl.dot(gradients, inputs, sums, input_precision=PRECISION, out_dtype=ACC)
    place = out + (m // K * q)[:, None] * K + j[None, :] * K + (m % K)[:, None]
    known = (m < p * K)[:, None] & (j < q)[None, :]
    tl.store(place, rounded(sums, out.dtype.element_ty, UPCAST), known)


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
def materialise_kernel(
    w, out, size, out_features, in_features, p, q, TAPS: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
    LAST: tl.constexpr, INDEX: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The dense matrix ``(G*out_features, in_features, taps)`` of ``w (G*p, taps, q, K)``, or inputs ``LAST``."""
    wait(EARLY)
    place = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    tap = place // in_features % TAPS if LAST else place % TAPS
    column = place % in_features if LAST else place // TAPS % in_features
    channel = place // (TAPS * in_features)
    row = channel % out_features
    offset = row % K - column % K
    block = ((channel // out_features * p + row // K) * TAPS + tap) * q + column // K
    known = place < size
    values = tl.load(w + block * K + tl.where(offset < 0, offset + K, offset), known)
    tl.store(out + place, values, known)


@triton.jit
@no_type_check
def diagonal_sums_kernel(
    dense, out, size, out_features, in_features, p, q, TAPS: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr, LAST: tl.constexpr, ACC: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
    EARLY: tl.constexpr,
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
        t = t0 + tl.arange(0, AT_ONCE)[None, :]
        row = (channel % p * K)[:, None] + t
        column = (j * K)[:, None] + (t - offset[:, None] + K) % K
        known = (place < size)[:, None] & (t < K) & (row < out_features) & (column < in_features)
        channels = (channel // p * out_features)[:, None] + row
        if LAST:
            source = (channels * TAPS + tap[:, None]) * in_features + column
        else:
            source = (channels * in_features + column) * TAPS + tap[:, None]
        sums += tl.sum(tl.load(dense + source, known, 0.0).to(ACC), 1)
    target = ((channel * TAPS + tap) * q + j) * K + offset
    tl.store(out + target, rounded(sums, out.dtype.element_ty, UPCAST), place < size)


def materialise_cost(weights: int, dense: int, io_bytes: int) -> Cost:
    """Writing out the dense matrix; its transpose adds as many numbers."""
    return Cost(0, weights * io_bytes, dense * io_bytes)

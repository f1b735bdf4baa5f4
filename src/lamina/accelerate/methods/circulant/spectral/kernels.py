"""The block-wise DFT on tensor cores, as matmuls with the packed real Fourier basis.

Dimensions: a *row* is one pixel of one example; ``F`` frequency slots; block size ``K``; ``G`` groups; ``p`` and ``q``
output and input blocks of a group. A spectrum of rows is ``[F, rows, 2, G*q]``, that of a weight ``[F, G*p*taps, 2,
q]``: real parts, then imaginary parts, with the blocks of a row contiguous, so that a warp's loads coalesce and the
summed dimension of every spectral matmul is contiguous. A float32 spectrum may be stored as scaled float16: in two
``TERMS``, hi and lo, with a leading dimension of 2 and float32 accuracy, or in one with that of TF32.

Common constexprs, here and in the other kernels: ``ACC``, the accumulator dtype; ``PRECISION``, the
``input_precision`` of fp32 matmuls; ``TF32`` rounds stored values to the 19 bits that tensor cores read, which would
truncate them; ``UPCAST`` computes 16-bit types in ``ACC`` (the interpreter cannot multiply bf16); ``INDEX``, the dtype
of offsets; ``PDL``, programmatic dependent launch: the kernel may start before the preceding one has finished, reads
the basis, and then waits for it.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.common.split_fp16.kernels import power_of_two_scale, split_hi_lo
from lamina.accelerate.runtime.triton_utils import griddepcontrol, rounded
from lamina.spec import Cost

BASIS_SCALE = tl.constexpr(256)
"""The scale of a split-fp16 basis, which keeps its low part in the range of float16."""

TARGET_EXPONENT = tl.constexpr(14)
"""Scaled float16 values, and sums of their products, stay below ``2**(TARGET_EXPONENT + 1)``."""

OVERFLOW_BITS = tl.constexpr(127 + TARGET_EXPONENT.value + 1 << 23)
"""The bits of ``2**(TARGET_EXPONENT + 1)`` in float32."""

HEADROOM = tl.constexpr(5)
"""Binary exponents by which elements may exceed a sampled amax."""


@triton.jit
@no_type_check
def round_to_storage(x, DTYPE: tl.constexpr, TF32: tl.constexpr, UPCAST: tl.constexpr):
    """``x`` in the stored dtype, with ``TF32`` rounded to nearest TF32."""
    if TF32:
        x = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return rounded(x, DTYPE, UPCAST)


@triton.jit
@no_type_check
def load_basis(basis, offsets, mask, TERM_STRIDE: tl.constexpr):
    """A tile of the basis: hi and lo, scaled by `BASIS_SCALE`, if it is in split fp16; else the same tile twice."""
    hi = tl.load(basis + offsets, mask, 0.0)
    return hi, tl.load(basis + TERM_STRIDE + offsets, mask, 0.0) if basis.dtype.element_ty == tl.float16 else hi


@triton.jit
@no_type_check
def multiply_basis(
    values, basis_hi, basis_lo, SCALED: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr
):  # fmt: skip
    """``values [M, K]`` times a tile of the basis from `load_basis`.

    With a split-fp16 basis, values are split too. Unless they are ``SCALED`` already, float32 rows are first scaled by
    a power of two per row, which is undone afterwards.
    """
    if basis_hi.dtype == tl.float16:
        if not SCALED:
            row_scale, row_scale_inv = power_of_two_scale(tl.max(tl.abs(values), 1), TARGET_EXPONENT)
            values *= row_scale[:, None]
        hi = values.to(tl.float16)  # not by `split_hi_lo`: a nonfinite value may make its whole row nonfinite
        lo = (values - hi.to(values.dtype)).to(tl.float16)
        if UPCAST:
            hi, lo, basis_hi, basis_lo = hi.to(ACC), lo.to(ACC), basis_hi.to(ACC), basis_lo.to(ACC)
        acc = tl.dot(hi, basis_lo, out_dtype=ACC)
        if values.dtype != tl.float16:  # fp16 values have no low part
            acc = tl.dot(lo, basis_hi, acc, out_dtype=ACC)
        acc = tl.dot(hi, basis_hi, acc, out_dtype=ACC)
        acc *= 1 / BASIS_SCALE if SCALED else (row_scale_inv * (1 / BASIS_SCALE))[:, None]
    else:
        acc = tl.dot(values.to(ACC), basis_hi, input_precision=PRECISION, out_dtype=ACC)
    return acc


@triton.jit
@no_type_check
def dft_tile(
    tile, x, signs, basis, partial_amax, scale_inv, overflow, out, rows, length, width, stride_n, stride_c, stride_l,
    BLOCKS: tl.constexpr, GROUPS: tl.constexpr, K: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_BLOCKS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
    FULL_ROWS: tl.constexpr, SIGN_FLIPS: tl.constexpr, SAMPLED: tl.constexpr, PARTIALS: tl.constexpr,
    TARGET_EXPONENT: tl.constexpr, TERMS: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr, TF32: tl.constexpr,
    UPCAST: tl.constexpr, INDEX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Spectra of a tile of rows and blocks: ``x (N, C, L)`` of any strides to ``out [F, rows, 2, G*q]``.

    With ``PARTIALS`` entries of ``partial_amax``, ``x`` is scaled by the power of two that brings its amax to
    ``2**TARGET_EXPONENT``, and the inverse scale is stored to ``scale_inv [1]``. A ``SAMPLED`` amax leaves `HEADROOM`;
    a spectrum that reaches `OVERFLOW_BITS`, or an amax of zero, sets ``overflow [1]``. ``FULL_ROWS`` tiles hold the
    whole spectra of their rows and store them contiguously. With ``SIGN_FLIPS``, the elements of each block are
    multiplied by ``signs [K]`` first.
    """
    F: tl.constexpr = (K + 1) // 2
    ROW_BLOCKS: tl.constexpr = GROUPS * BLOCKS
    tiles_f: tl.constexpr = (2 * F + BLOCK_N - 1) // BLOCK_N
    tiles_j: tl.constexpr = (ROW_BLOCKS + TILE_BLOCKS - 1) // TILE_BLOCKS
    m = tl.arange(0, TILE_ROWS * TILE_BLOCKS)
    row = tile // (tiles_f * tiles_j) * TILE_ROWS + m // TILE_BLOCKS
    block = tile // tiles_f % tiles_j * TILE_BLOCKS + m % TILE_BLOCKS
    f = tile % tiles_f * BLOCK_N + tl.arange(0, BLOCK_N)
    start = block % BLOCKS * K  # first channel of the block, in its group
    in_bounds = (row < rows) & (block < ROW_BLOCKS)
    pixel = x + (row // length).to(INDEX) * stride_n + (row % length).to(INDEX) * stride_l
    channel = pixel + (block // BLOCKS * width + start).to(INDEX) * stride_c
    acc = tl.zeros((TILE_ROWS * TILE_BLOCKS, BLOCK_N), ACC)
    for t0 in tl.static_range(0, K, BLOCK_K):
        t = t0 + tl.arange(0, BLOCK_K)
        basis_mask = (f < 2 * F)[None, :] & (t < K)[:, None]
        basis_hi, basis_lo = load_basis(basis, f[None, :] * K + t[:, None], basis_mask, 2 * F * K)
        if t0 == 0:
            griddepcontrol(PDL)
        mask = in_bounds[:, None] & (t < K)[None, :] & (start[:, None] + t[None, :] < width)
        values = tl.load(channel[:, None] + t[None, :].to(INDEX) * stride_c, mask, 0.0).to(ACC)
        if PARTIALS and t0 == 0:  # while the loads above are in flight
            amax = tl.max(tl.load(partial_amax + tl.arange(0, PARTIALS)), 0)
            scale, inverse = power_of_two_scale(amax, TARGET_EXPONENT - HEADROOM if SAMPLED else TARGET_EXPONENT)
        if PARTIALS:
            values *= scale
        if SIGN_FLIPS:
            values *= tl.load(signs + t, t < K, 0.0).to(ACC)[None, :]
        acc += multiply_basis(values, basis_hi, basis_lo, PARTIALS > 0, ACC, PRECISION, UPCAST)
    if PARTIALS:
        tl.store(scale_inv, inverse, tile == 0)
    if SAMPLED:
        max_bits = tl.max(
            acc.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1
        )  # compared as bits, among which NaN is largest
        tl.store(overflow + tl.zeros_like(m), 1, tl.where(amax > 0, max_bits, OVERFLOW_BITS) >= OVERFLOW_BITS)
    if FULL_ROWS:  # contiguous in memory for each frequency
        acc = tl.permute(tl.reshape(acc, (TILE_ROWS, TILE_BLOCKS, 2, F)), (3, 0, 2, 1))
        acc = tl.reshape(acc, (F, TILE_ROWS * 2 * TILE_BLOCKS))
        n = (tile // tiles_f * TILE_ROWS).to(INDEX) * 2 * ROW_BLOCKS + tl.arange(0, TILE_ROWS * 2 * TILE_BLOCKS)
        offsets = tl.arange(0, F).to(INDEX)[:, None] * rows * 2 * ROW_BLOCKS + n[None, :]
        mask = tl.broadcast_to((n < tl.cast(rows, INDEX) * 2 * ROW_BLOCKS)[None, :], (F, TILE_ROWS * 2 * TILE_BLOCKS))
    else:
        offsets = (f % F).to(INDEX)[None, :] * rows * 2 * ROW_BLOCKS + (f // F)[None, :] * ROW_BLOCKS
        offsets += row.to(INDEX)[:, None] * 2 * ROW_BLOCKS + block[:, None]
        mask = in_bounds[:, None] & (f < 2 * F)[None, :]
    if TERMS == 2:
        hi, lo = split_hi_lo(acc)
        tl.store(out + offsets, hi, mask)
        tl.store(out + tl.cast(rows, INDEX) * 2 * F * ROW_BLOCKS + offsets, lo, mask)
    else:
        tl.store(out + offsets, round_to_storage(acc, out.dtype.element_ty, TF32, UPCAST), mask)


@triton.jit
@no_type_check
def idft_tile(
    tile, spectrum, split_k, signs, basis, bias, scale_inv, other_scale_inv, y, rows, length, width, stride_n,
    stride_c, stride_l,
    BLOCKS: tl.constexpr, GROUPS: tl.constexpr, K: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_BLOCKS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
    SIGN_FLIPS: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr, SPLIT_K: tl.constexpr, DESCALE: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr,
    UPCAST: tl.constexpr, INDEX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The transpose of `dft_tile`, plus ``bias (C)``, then ``RELU``: ``spectrum [F, rows, 2, G*q]`` to ``y (N, C, L)``.

    With ``SPLIT_K``, the input is the sum of the partials ``spectrum [split_k, F, rows, 2, G*q]``, added in order.

    With ``DESCALE``, the input is a matmul of scaled spectra: the result is multiplied by ``DESCALE`` and by the
    inverse scales ``scale_inv [1]`` and ``other_scale_inv [1]`` of both operands.
    """
    F: tl.constexpr = (K + 1) // 2
    ROW_BLOCKS: tl.constexpr = GROUPS * BLOCKS
    SCALED: tl.constexpr = spectrum.dtype.element_ty == tl.float16
    tiles_t: tl.constexpr = (K + BLOCK_N - 1) // BLOCK_N
    tiles_j: tl.constexpr = (ROW_BLOCKS + TILE_BLOCKS - 1) // TILE_BLOCKS
    m = tl.arange(0, TILE_ROWS * TILE_BLOCKS)
    row = tile // (tiles_t * tiles_j) * TILE_ROWS + m // TILE_BLOCKS
    block = tile // tiles_t % tiles_j * TILE_BLOCKS + m % TILE_BLOCKS
    t = tile % tiles_t * BLOCK_N + tl.arange(0, BLOCK_N)
    start = block % BLOCKS * K
    in_bounds = (row < rows) & (block < ROW_BLOCKS)
    # No contiguous tiles here: the row amax of a permuted tile is wrong (Triton 3.6).
    source = spectrum + row.to(INDEX)[:, None] * 2 * ROW_BLOCKS + block[:, None]
    acc = tl.zeros((TILE_ROWS * TILE_BLOCKS, BLOCK_N), ACC)
    for f0 in tl.static_range(0, 2 * F, BLOCK_K):
        f = f0 + tl.arange(0, BLOCK_K)
        basis_mask = (f < 2 * F)[:, None] & (t < K)[None, :]
        basis_hi, basis_lo = load_basis(basis, f[:, None] * K + t[None, :], basis_mask, 2 * F * K)
        if f0 == 0:
            griddepcontrol(PDL)
        offsets = (f % F).to(INDEX)[None, :] * rows * 2 * ROW_BLOCKS + (f // F)[None, :] * ROW_BLOCKS
        mask = in_bounds[:, None] & (f < 2 * F)[None, :]
        values = tl.load(source + offsets, mask, 0.0)
        if SPLIT_K:
            partial = source + offsets
            for _ in range(1, split_k):
                partial += 2 * F * ROW_BLOCKS * rows
                values += tl.load(partial, mask, 0.0)
        if DESCALE > 0 and f0 == 0:
            first, second = tl.load(scale_inv), tl.load(other_scale_inv)
        acc += multiply_basis(values, basis_hi, basis_lo, SCALED, ACC, PRECISION, UPCAST)
    if DESCALE > 0:  # the smaller inverse scale first: the intermediate stays in range if the result does
        acc *= tl.minimum(first, second) * DESCALE * tl.maximum(first, second)
    if SIGN_FLIPS:
        acc *= tl.load(signs + t, t < K, 0.0).to(ACC)[None, :]
    channel = (block // BLOCKS * width + start)[:, None] + t[None, :]
    mask = in_bounds[:, None] & (t < K)[None, :] & (start[:, None] + t[None, :] < width)
    if BIAS:
        acc += tl.load(bias + channel, mask, 0.0).to(ACC)
    if RELU:
        acc = tl.where(acc < 0, 0.0, acc)  # NaN stays
    pixel = y + (row // length).to(INDEX) * stride_n + (row % length).to(INDEX) * stride_l
    stored = rounded(acc, y.dtype.element_ty, UPCAST)
    tl.store(pixel[:, None] + channel.to(INDEX) * stride_c, stored, mask)


@triton.jit
@no_type_check
def dft_kernel(
    x, signs, x_basis, x_out, x_rows, x_length, x_width, x_stride_n, x_stride_c, x_stride_l, x_tiles,
    w, w_basis, w_out, w_rows, w_length, w_width, w_stride_n, w_stride_c, w_stride_l,
    partial_amax, x_scale_inv, w_scale_inv, overflow,
    X_BLOCKS: tl.constexpr, X_GROUPS: tl.constexpr, W_BLOCKS: tl.constexpr, W_GROUPS: tl.constexpr, K: tl.constexpr,
    X_TILE_ROWS: tl.constexpr, X_TILE_BLOCKS: tl.constexpr, W_TILE_ROWS: tl.constexpr, W_TILE_BLOCKS: tl.constexpr,
    X_FULL_ROWS: tl.constexpr, W_FULL_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, SIGN_FLIPS: tl.constexpr, PAIR: tl.constexpr,
    SAMPLED: tl.constexpr, RETRY: tl.constexpr, X_PARTIALS: tl.constexpr, W_PARTIALS: tl.constexpr,
    X_TARGET_EXPONENT: tl.constexpr, W_TARGET_EXPONENT: tl.constexpr, TERMS: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, TF32: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The spectra of rows and, with ``PAIR``, of weights in the same launch, each under its own scale if it has one.

    ``partial_amax [X_PARTIALS + W_PARTIALS]`` holds those of rows, then those of weights. With ``RETRY``, a few
    programs transform the rows again if a ``SAMPLED`` amax has set ``overflow``, and otherwise do nothing.
    """
    tile = tl.program_id(0)
    if RETRY:
        griddepcontrol(PDL)
        tiles = tl.where(tl.load(overflow) > 0, x_tiles, 0)
        while tile < tiles:
            dft_tile(
                tile, x, signs, x_basis, partial_amax, x_scale_inv, overflow, x_out, x_rows, x_length, x_width,
                x_stride_n, x_stride_c, x_stride_l,
                X_BLOCKS, X_GROUPS, K, X_TILE_ROWS, X_TILE_BLOCKS, BLOCK_K, BLOCK_N, X_FULL_ROWS, SIGN_FLIPS, False,
                X_PARTIALS,
                X_TARGET_EXPONENT, TERMS, ACC, PRECISION, TF32, UPCAST, INDEX, False,
            )  # fmt: skip
            tile += tl.num_programs(0)
    elif PAIR and tile >= x_tiles:
        dft_tile(
            tile - x_tiles, w, signs, w_basis, partial_amax + X_PARTIALS, w_scale_inv, overflow, w_out, w_rows,
            w_length,
            w_width, w_stride_n, w_stride_c, w_stride_l,
            W_BLOCKS, W_GROUPS, K, W_TILE_ROWS, W_TILE_BLOCKS, BLOCK_K, BLOCK_N, W_FULL_ROWS, False, False, W_PARTIALS,
            W_TARGET_EXPONENT, TERMS, ACC, PRECISION, TF32, UPCAST, INDEX, PDL,
        )  # fmt: skip
    else:
        dft_tile(  # in reverse order: the last rows that the amax kernel read are still in the L2 cache
            x_tiles - 1 - tile, x, signs, x_basis, partial_amax, x_scale_inv, overflow, x_out, x_rows, x_length,
            x_width,
            x_stride_n, x_stride_c, x_stride_l,
            X_BLOCKS, X_GROUPS, K, X_TILE_ROWS, X_TILE_BLOCKS, BLOCK_K, BLOCK_N, X_FULL_ROWS, SIGN_FLIPS, SAMPLED,
            X_PARTIALS,
            X_TARGET_EXPONENT, TERMS, ACC, PRECISION, TF32, UPCAST, INDEX, PDL,
        )  # fmt: skip


@triton.jit
@no_type_check
def idft_kernel(
    x_spectrum, signs, x_basis, bias, x, x_rows, x_length, x_width, x_stride_n, x_stride_c, x_stride_l,
    w_spectrum, w_basis, w, w_rows, w_length, w_width, w_stride_n, w_stride_c, w_stride_l, w_tiles, split_k,
    scale_inv, x_other_scale_inv, w_other_scale_inv,
    X_BLOCKS: tl.constexpr, X_GROUPS: tl.constexpr, W_BLOCKS: tl.constexpr, W_GROUPS: tl.constexpr, K: tl.constexpr,
    X_TILE_ROWS: tl.constexpr, X_TILE_BLOCKS: tl.constexpr, W_TILE_ROWS: tl.constexpr, W_TILE_BLOCKS: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, SIGN_FLIPS: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr,
    PAIR: tl.constexpr, SPLIT_K: tl.constexpr, X_DESCALE: tl.constexpr, W_DESCALE: tl.constexpr, ACC: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The transpose of `dft_kernel`: rows from their spectra; with ``PAIR``, first weights from theirs."""
    tile = tl.program_id(0)
    if PAIR and tile < w_tiles:
        idft_tile(
            tile, w_spectrum, split_k, signs, w_basis, bias, scale_inv, w_other_scale_inv, w, w_rows, w_length, w_width,
            w_stride_n, w_stride_c, w_stride_l,
            W_BLOCKS, W_GROUPS, K, W_TILE_ROWS, W_TILE_BLOCKS, BLOCK_K, BLOCK_N, False, False, False, SPLIT_K,
            W_DESCALE, ACC, PRECISION, UPCAST, INDEX, PDL,
        )  # fmt: skip
    else:
        idft_tile(
            tile - w_tiles, x_spectrum, 1, signs, x_basis, bias, scale_inv, x_other_scale_inv, x, x_rows, x_length,
            x_width,
            x_stride_n, x_stride_c, x_stride_l,
            X_BLOCKS, X_GROUPS, K, X_TILE_ROWS, X_TILE_BLOCKS, BLOCK_K, BLOCK_N, SIGN_FLIPS, BIAS, RELU, False,
            X_DESCALE, ACC, PRECISION, UPCAST, INDEX, PDL,
        )  # fmt: skip


def dft_cost(rows: int, blocks: int, block_size: int, io_bytes: int, spectral_bytes: int) -> Cost:
    """The cost of a transform of ``rows`` rows of ``blocks`` blocks, as the matmul that computes it."""
    packed = 2 * ((block_size + 1) // 2)
    elements = rows * blocks
    return Cost(
        2 * elements * packed * block_size,
        elements * block_size * io_bytes,
        elements * packed * spectral_bytes,
    )

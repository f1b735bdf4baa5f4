"""Transforms on tensor cores, as products with the packed real Fourier basis.

Letters: a *row* is one pixel of one example, ``F`` slots of frequencies, ``K`` the block size, ``G`` groups, ``p`` and
``q`` blocks of one group's outputs and inputs. A spectrum of rows is ``[F, rows, 2, G*q]`` and a weight's is
``[F, G*p*taps, 2, q]``: real parts, then imaginary parts, the blocks of a row side by side, so that a warp reads them
together and every product of spectra finds its summed axis contiguous. Factors of float32 numbers may be float16 halves
under a scale: in two ``PARTS``, one behind the other, they keep float32's accuracy, in one TF32's.

Common compile-time switches, here and in the other kernels: ``ACC`` the type sums are kept in; ``PRECISION`` of fp32
products; ``TF32`` rounds what is stored to the 19 bits that tensor cores read, since they would truncate it; ``UPCAST``
computes narrow types in ``ACC`` (the interpreter cannot multiply bf16); ``INDEX`` the type of addresses; ``EARLY``
kernels are launched before the one in front of them has ended, and wait for it themselves, once they have read waves.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.common.split_fp16.kernels import halves, power
from lamina.accelerate.runtime.triton_utils import rounded, wait
from lamina.spec import Cost

WAVES = tl.constexpr(256)
"""What a basis of halves is multiplied by, so that what float16 leaves of it is not too small for float16."""

TOP = tl.constexpr(14)
"""What is float16 under a scale stays below ``2**(TOP + 1)``, and sums of its products likewise."""

BEYOND = tl.constexpr(127 + TOP.value + 1 << 23)
"""The bits of ``2**(TOP + 1)`` in float32."""

MARGIN = tl.constexpr(5)
"""Powers of two by which numbers may exceed those that a scale was guessed from."""


@triton.jit
@no_type_check
def narrow(x, DTYPE: tl.constexpr, TF32: tl.constexpr, UPCAST: tl.constexpr):
    """``x`` in the stored type, where ``TF32`` to what tensor cores read of it, rounded to nearest."""
    if TF32:
        x = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return rounded(x, DTYPE, UPCAST)


@triton.jit
@no_type_check
def waves_at(basis, place, known, PIECE: tl.constexpr):
    """A tile of the basis; one of halves has two pieces, ``PIECE`` numbers apart, `WAVES` times as large."""
    waves = tl.load(basis + place, known, 0.0)
    return waves, tl.load(basis + PIECE + place, known, 0.0) if basis.dtype.element_ty == tl.float16 else waves


@triton.jit
@no_type_check
def transformed(
    values, waves, rest, SCALED: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr
):  # fmt: skip
    """``values`` times `waves_at` a place; rows of wide ones, unless ``SCALED``, are so for halves, and back again."""
    if waves.dtype == tl.float16:
        if not SCALED:
            up, down = power(tl.max(tl.abs(values), 1), TOP)
            values *= up[:, None]
        high = values.to(tl.float16)  # not by `halves`: what is not finite may spoil its row, and costs nothing more
        low = (values - high.to(values.dtype)).to(tl.float16)
        if UPCAST:
            high, low, waves, rest = high.to(ACC), low.to(ACC), waves.to(ACC), rest.to(ACC)
        sums = tl.dot(high, rest, out_dtype=ACC)
        if values.dtype != tl.float16:  # what float16 leaves of them
            sums = tl.dot(low, waves, sums, out_dtype=ACC)
        sums = tl.dot(high, waves, sums, out_dtype=ACC)
        sums *= 1 / WAVES if SCALED else (down * (1 / WAVES))[:, None]
    else:
        sums = tl.dot(values.to(ACC), waves, input_precision=PRECISION, out_dtype=ACC)
    return sums


@triton.jit
@no_type_check
def dft_tile(
    tile, x, signs, basis, peaks, down, misled, out, rows, length, width, stride_n, stride_c, stride_l,
    BLOCKS: tl.constexpr, GROUPS: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, AT_ONCE: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, WHOLE: tl.constexpr,
    SIGNED: tl.constexpr, GUESSED: tl.constexpr, SHARES: tl.constexpr, TOP: tl.constexpr, PARTS: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, TF32: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Spectra of ``ROWS`` rows and ``AT_ONCE`` blocks: ``x (N, C, L)`` of any strides to ``out [F, rows, 2, G*q]``.

    With ``SHARES`` of ``peaks``, of ``x`` times the power of two that brings the largest to ``2**TOP``; what undoes it
    goes to ``down [1]``. Where these are of some of ``x`` alone, the power is ``GUESSED`` with a `MARGIN`; a spectrum
    `BEYOND` it, or peaks that are all zero, set ``misled [1]``. ``WHOLE`` tiles hold all numbers of their rows'
    spectra, and write them as runs. Where ``SIGNED``, each block's numbers are multiplied by ``signs [K]`` first.
    """
    F: tl.constexpr = (K + 1) // 2
    ACROSS: tl.constexpr = GROUPS * BLOCKS
    tiles_f: tl.constexpr = (2 * F + BN - 1) // BN
    tiles_j: tl.constexpr = (ACROSS + AT_ONCE - 1) // AT_ONCE
    m = tl.arange(0, ROWS * AT_ONCE)
    row = tile // (tiles_f * tiles_j) * ROWS + m // AT_ONCE
    block = tile // tiles_f % tiles_j * AT_ONCE + m % AT_ONCE
    f = tile % tiles_f * BN + tl.arange(0, BN)
    start = block % BLOCKS * K  # first channel of the block, in its group
    inside = (row < rows) & (block < ACROSS)
    pixel = x + (row // length).to(INDEX) * stride_n + (row % length).to(INDEX) * stride_l
    channel = pixel + (block // BLOCKS * width + start).to(INDEX) * stride_c
    sums = tl.zeros((ROWS * AT_ONCE, BN), ACC)
    for t0 in tl.static_range(0, K, BK):
        t = t0 + tl.arange(0, BK)
        wanted = (f < 2 * F)[None, :] & (t < K)[:, None]
        waves, rest = waves_at(basis, f[None, :] * K + t[:, None], wanted, 2 * F * K)
        if t0 == 0:
            wait(EARLY)
        known = inside[:, None] & (t < K)[None, :] & (start[:, None] + t[None, :] < width)
        values = tl.load(channel[:, None] + t[None, :].to(INDEX) * stride_c, known, 0.0).to(ACC)
        if SHARES and t0 == 0:  # here, where the loads above are on their way
            peak = tl.max(tl.load(peaks + tl.arange(0, SHARES)), 0)
            up, undo = power(peak, TOP - MARGIN if GUESSED else TOP)
        if SHARES:
            values *= up
        if SIGNED:
            values *= tl.load(signs + t, t < K, 0.0).to(ACC)[None, :]
        sums += transformed(values, waves, rest, SHARES > 0, ACC, PRECISION, UPCAST)
    if SHARES:
        tl.store(down, undo, tile == 0)
    if GUESSED:
        most = tl.max(sums.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)  # as bits, of which NaN has more
        tl.store(misled + tl.zeros_like(m), 1, tl.where(peak > 0, most, BEYOND) >= BEYOND)
    if WHOLE:  # a run of numbers in memory for each frequency
        sums = tl.reshape(tl.permute(tl.reshape(sums, (ROWS, AT_ONCE, 2, F)), (3, 0, 2, 1)), (F, ROWS * 2 * AT_ONCE))
        n = (tile // tiles_f * ROWS).to(INDEX) * 2 * ACROSS + tl.arange(0, ROWS * 2 * AT_ONCE)
        place = tl.arange(0, F).to(INDEX)[:, None] * rows * 2 * ACROSS + n[None, :]
        known = tl.broadcast_to((n < tl.cast(rows, INDEX) * 2 * ACROSS)[None, :], (F, ROWS * 2 * AT_ONCE))
    else:
        place = (f % F).to(INDEX)[None, :] * rows * 2 * ACROSS + (f // F)[None, :] * ACROSS
        place += row.to(INDEX)[:, None] * 2 * ACROSS + block[:, None]
        known = inside[:, None] & (f < 2 * F)[None, :]
    if PARTS == 2:
        high, rest = halves(sums)
        tl.store(out + place, high, known)
        tl.store(out + tl.cast(rows, INDEX) * 2 * F * ACROSS + place, rest, known)
    else:
        tl.store(out + place, narrow(sums, out.dtype.element_ty, TF32, UPCAST), known)


@triton.jit
@no_type_check
def idft_tile(
    tile, spectrum, splits, signs, basis, bias, down, other, y, rows, length, width, stride_n, stride_c, stride_l,
    BLOCKS: tl.constexpr, GROUPS: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, AT_ONCE: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, SIGNED: tl.constexpr,
    BIAS: tl.constexpr, SPLIT: tl.constexpr, UNDO: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
    UPCAST: tl.constexpr, INDEX: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The transpose of `dft_tile`, with ``bias (C)`` added: ``spectrum [F, rows, 2, G*q]`` to ``y (N, C, L)``.

    With ``SPLIT``, of the sum of ``spectrum [splits, F, rows, 2, G*q]``, in order.

    With ``UNDO``, of a product of spectra under scales: times it, and times ``down [1]`` and ``other [1]`` of both.
    """
    F: tl.constexpr = (K + 1) // 2
    ACROSS: tl.constexpr = GROUPS * BLOCKS
    SCALED: tl.constexpr = spectrum.dtype.element_ty == tl.float16
    tiles_t: tl.constexpr = (K + BN - 1) // BN
    tiles_j: tl.constexpr = (ACROSS + AT_ONCE - 1) // AT_ONCE
    m = tl.arange(0, ROWS * AT_ONCE)
    row = tile // (tiles_t * tiles_j) * ROWS + m // AT_ONCE
    block = tile // tiles_t % tiles_j * AT_ONCE + m % AT_ONCE
    t = tile % tiles_t * BN + tl.arange(0, BN)
    start = block % BLOCKS * K
    inside = (row < rows) & (block < ACROSS)
    # Not as runs: a row's largest number, of runs that were turned, came out wrong (Triton 3.6).
    source = spectrum + row.to(INDEX)[:, None] * 2 * ACROSS + block[:, None]
    sums = tl.zeros((ROWS * AT_ONCE, BN), ACC)
    for f0 in tl.static_range(0, 2 * F, BK):
        f = f0 + tl.arange(0, BK)
        wanted = (f < 2 * F)[:, None] & (t < K)[None, :]
        waves, rest = waves_at(basis, f[:, None] * K + t[None, :], wanted, 2 * F * K)
        if f0 == 0:
            wait(EARLY)
        place = (f % F).to(INDEX)[None, :] * rows * 2 * ACROSS + (f // F)[None, :] * ACROSS
        known = inside[:, None] & (f < 2 * F)[None, :]
        values = tl.load(source + place, known, 0.0)
        if SPLIT:
            share = source + place
            for _ in range(1, splits):
                share += 2 * F * ACROSS * rows
                values += tl.load(share, known, 0.0)
        if UNDO > 0 and f0 == 0:
            first, second = tl.load(down), tl.load(other)
        sums += transformed(values, waves, rest, SCALED, ACC, PRECISION, UPCAST)
    if UNDO > 0:  # the smaller first: their product may be within range alone
        sums *= tl.minimum(first, second) * UNDO * tl.maximum(first, second)
    if SIGNED:
        sums *= tl.load(signs + t, t < K, 0.0).to(ACC)[None, :]
    channel = (block // BLOCKS * width + start)[:, None] + t[None, :]
    known = inside[:, None] & (t < K)[None, :] & (start[:, None] + t[None, :] < width)
    if BIAS:
        sums += tl.load(bias + channel, known, 0.0).to(ACC)
    pixel = y + (row // length).to(INDEX) * stride_n + (row % length).to(INDEX) * stride_l
    stored = rounded(sums, y.dtype.element_ty, UPCAST)
    tl.store(pixel[:, None] + channel.to(INDEX) * stride_c, stored, known)


@triton.jit
@no_type_check
def dft_kernel(
    x, signs, x_basis, x_out, x_rows, x_length, x_width, x_stride_n, x_stride_c, x_stride_l, x_tiles,
    w, w_basis, w_out, w_rows, w_length, w_width, w_stride_n, w_stride_c, w_stride_l,
    peaks, x_down, w_down, misled,
    X_BLOCKS: tl.constexpr, X_GROUPS: tl.constexpr, W_BLOCKS: tl.constexpr, W_GROUPS: tl.constexpr, K: tl.constexpr,
    X_ROWS: tl.constexpr, X_AT_ONCE: tl.constexpr, W_ROWS: tl.constexpr, W_AT_ONCE: tl.constexpr,
    X_WHOLE: tl.constexpr, W_WHOLE: tl.constexpr,
    BK: tl.constexpr, BN: tl.constexpr, SIGNED: tl.constexpr, PAIR: tl.constexpr,
    GUESSED: tl.constexpr, AGAIN: tl.constexpr, X_SHARES: tl.constexpr, W_SHARES: tl.constexpr,
    X_TOP: tl.constexpr, W_TOP: tl.constexpr, PARTS: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, TF32: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """The spectra of rows and, where ``PAIR``, of weights in the same launch; each under its scale, where it has one.

    ``peaks [X_SHARES + W_SHARES]`` are those of rows, then those of weights. Where the scale of rows was ``GUESSED``,
    and that has ``misled``, it is for few programs to transform them ``AGAIN``.
    """
    tile = tl.program_id(0)
    if AGAIN:
        wait(EARLY)
        tiles = tl.where(tl.load(misled) > 0, x_tiles, 0)
        while tile < tiles:
            dft_tile(
                tile, x, signs, x_basis, peaks, x_down, misled, x_out, x_rows, x_length, x_width,
                x_stride_n, x_stride_c, x_stride_l,
                X_BLOCKS, X_GROUPS, K, X_ROWS, X_AT_ONCE, BK, BN, X_WHOLE, SIGNED, False, X_SHARES, X_TOP, PARTS,
                ACC, PRECISION, TF32, UPCAST, INDEX, False,
            )  # fmt: skip
            tile += tl.num_programs(0)
    elif PAIR and tile >= x_tiles:
        dft_tile(
            tile - x_tiles, w, signs, w_basis, peaks + X_SHARES, w_down, misled, w_out, w_rows, w_length, w_width,
            w_stride_n, w_stride_c, w_stride_l,
            W_BLOCKS, W_GROUPS, K, W_ROWS, W_AT_ONCE, BK, BN, W_WHOLE, False, False, W_SHARES, W_TOP, PARTS,
            ACC, PRECISION, TF32, UPCAST, INDEX, EARLY,
        )  # fmt: skip
    else:
        dft_tile(  # from the last to the first, which who found the scale has left in the cache
            x_tiles - 1 - tile, x, signs, x_basis, peaks, x_down, misled, x_out, x_rows, x_length, x_width,
            x_stride_n, x_stride_c, x_stride_l,
            X_BLOCKS, X_GROUPS, K, X_ROWS, X_AT_ONCE, BK, BN, X_WHOLE, SIGNED, GUESSED, X_SHARES, X_TOP, PARTS,
            ACC, PRECISION, TF32, UPCAST, INDEX, EARLY,
        )  # fmt: skip


@triton.jit
@no_type_check
def idft_kernel(
    x_spectrum, signs, x_basis, bias, x, x_rows, x_length, x_width, x_stride_n, x_stride_c, x_stride_l,
    w_spectrum, w_basis, w, w_rows, w_length, w_width, w_stride_n, w_stride_c, w_stride_l, w_tiles, splits,
    down, x_other, w_other,
    X_BLOCKS: tl.constexpr, X_GROUPS: tl.constexpr, W_BLOCKS: tl.constexpr, W_GROUPS: tl.constexpr, K: tl.constexpr,
    X_ROWS: tl.constexpr, X_AT_ONCE: tl.constexpr, W_ROWS: tl.constexpr, W_AT_ONCE: tl.constexpr,
    BK: tl.constexpr, BN: tl.constexpr, SIGNED: tl.constexpr, BIAS: tl.constexpr, PAIR: tl.constexpr,
    SPLIT: tl.constexpr, X_UNDO: tl.constexpr, W_UNDO: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
    UPCAST: tl.constexpr, INDEX: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The transpose of `dft_kernel`: rows from their spectra; where ``PAIR``, weights from theirs before."""
    tile = tl.program_id(0)
    if PAIR and tile < w_tiles:
        idft_tile(
            tile, w_spectrum, splits, signs, w_basis, bias, down, w_other, w, w_rows, w_length, w_width,
            w_stride_n, w_stride_c, w_stride_l,
            W_BLOCKS, W_GROUPS, K, W_ROWS, W_AT_ONCE, BK, BN, False, False, SPLIT, W_UNDO,
            ACC, PRECISION, UPCAST, INDEX, EARLY,
        )  # fmt: skip
    else:
        idft_tile(
            tile - w_tiles, x_spectrum, 1, signs, x_basis, bias, down, x_other, x, x_rows, x_length, x_width,
            x_stride_n, x_stride_c, x_stride_l,
            X_BLOCKS, X_GROUPS, K, X_ROWS, X_AT_ONCE, BK, BN, SIGNED, BIAS, False, X_UNDO,
            ACC, PRECISION, UPCAST, INDEX, EARLY,
        )  # fmt: skip


def dft_cost(rows: int, blocks: int, block_size: int, io_bytes: int, spectral_bytes: int) -> Cost:
    """Either transform of ``rows`` rows of ``blocks`` blocks, as the matrix product that computes it."""
    packed = 2 * ((block_size + 1) // 2)
    elements = rows * blocks
    return Cost(
        2 * elements * packed * block_size,
        elements * block_size * io_bytes,
        elements * packed * spectral_bytes,
    )

"""Block-circulant products on tensor cores: transform, multiply each frequency, transform back.

Letters: a *row* is one pixel of one example, ``F`` slots of frequencies, ``K`` the block size, ``G`` groups, ``p`` and
``q`` blocks of one group's outputs and inputs. A spectrum of rows is ``[F, rows, 2, G*q]`` and a weight's is
``[F, G*p*taps, 2, q]``: real parts, then imaginary parts, the blocks of a row side by side, so that a warp reads them
together and every product below finds its summed axis contiguous. Factors of float32 numbers may be float16 halves
under a scale: in two ``PARTS``, one behind the other, they keep float32's accuracy, in one TF32's.

Common compile-time switches: ``ACC`` the type sums are kept in; ``PRECISION`` of fp32 products; ``TF32`` rounds what
is stored to the 19 bits that tensor cores read, since they would truncate it; ``UPCAST`` computes narrow types in
``ACC`` (the interpreter cannot multiply bf16); ``INDEX`` the type of addresses; ``STEP`` how many numbers of one tap
lie side by side in a tile of several, 0 where taps are not told apart; ``EARLY`` kernels are launched before the one
in front of them has ended, and wait for it themselves.
"""

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from lamina.accelerate.circulant.window import Window
from lamina.accelerate.halves.kernels import halves, power, scale
from lamina.accelerate.kernels import origin, rounded, source_row
from lamina.spec import Cost

WAVES = tl.constexpr(256)
"""What a basis of halves is multiplied by, so that what float16 leaves of it is not too small for float16."""


@triton.jit
@no_type_check
def narrow(x, DTYPE: tl.constexpr, TF32: tl.constexpr, UPCAST: tl.constexpr):
    """``x`` in the stored type, where ``TF32`` to what tensor cores read of it, rounded to nearest."""
    if TF32:
        x = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return rounded(x, DTYPE, UPCAST)


@triton.jit
@no_type_check
def wait(EARLY: tl.constexpr):
    """Until the kernels in front have ended; the next one may begin to be launched."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
@no_type_check
def product(
    sums, a, a_rest, b, b_rest, PARTS: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """``sums`` and ``a`` times ``b``; of two ``PARTS`` each, without the product of what is left of both."""
    if UPCAST:
        a, a_rest, b, b_rest = a.to(sums.dtype), a_rest.to(sums.dtype), b.to(sums.dtype), b_rest.to(sums.dtype)
    if PARTS == 2:  # added up outside the tensor cores, which cut sums off where float32 would round them
        step = tl.dot(a_rest, b, out_dtype=sums.dtype)
        step = tl.dot(a, b_rest, step, out_dtype=sums.dtype)
        return sums + tl.dot(a, b, step, out_dtype=sums.dtype)
    return tl.dot(a, b, sums, input_precision=PRECISION, out_dtype=sums.dtype)


@triton.jit
@no_type_check
def transformed(
    values, basis, place, known, PIECE: tl.constexpr, SCALED: tl.constexpr, ACC: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """``values`` times waves. A basis of halves has two pieces, ``PIECE`` numbers apart, `WAVES` times as large.

    Unless they are ``SCALED``, each row of wide values is for halves, and back again.
    """
    waves = tl.load(basis + place, known, 0.0)
    if basis.dtype.element_ty == tl.float16:
        rest = tl.load(basis + PIECE + place, known, 0.0)
        if not SCALED:
            up, down = power(tl.max(tl.abs(values), 1), 14)
            values *= up[:, None]
        high = values.to(tl.float16)
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
    tile, x, signs, basis, peaks, down, out, rows, length, width, stride_n, stride_c, stride_l,
    BLOCKS: tl.constexpr, GROUPS: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, AT_ONCE: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, SIGNED: tl.constexpr,
    SHARES: tl.constexpr, TOP: tl.constexpr, PARTS: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
    TF32: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Spectra of ``ROWS`` rows and ``AT_ONCE`` blocks: ``x (N, C, L)`` of any strides to ``out [F, rows, 2, G*q]``.

    With ``SHARES`` of ``peaks``, of ``x`` times the power of two that brings the largest to ``2**TOP``; what undoes it
    goes to ``down [1]``. Where ``SIGNED``, each block's numbers are multiplied by ``signs [K]`` first.
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
    if SHARES:
        up, undo = scale(peaks, SHARES, TOP)
        tl.store(down, undo, tile == 0)
    for t0 in range(0, K, BK):
        t = t0 + tl.arange(0, BK)
        known = inside[:, None] & (t < K)[None, :] & (start[:, None] + t[None, :] < width)
        values = tl.load(channel[:, None] + t[None, :].to(INDEX) * stride_c, known, 0.0).to(ACC)
        if SHARES:
            values *= up
        if SIGNED:
            values *= tl.load(signs + t, t < K, 0.0).to(ACC)[None, :]
        wanted = (f < 2 * F)[None, :] & (t < K)[:, None]
        place = f[None, :] * K + t[:, None]
        sums += transformed(values, basis, place, wanted, 2 * F * K, SHARES > 0, ACC, PRECISION, UPCAST)
    place = (f % F).to(INDEX)[None, :] * rows * 2 * ACROSS + (f // F)[None, :] * ACROSS
    place += row.to(INDEX)[:, None] * 2 * ACROSS + block[:, None]
    known = inside[:, None] & (f < 2 * F)[None, :]
    if PARTS == 2:
        high, rest = halves(sums)
        tl.store(out + place, high, known)
        tl.store(out + rows.to(INDEX) * 2 * F * ACROSS + place, rest, known)
    else:
        tl.store(out + place, narrow(sums, out.dtype.element_ty, TF32, UPCAST), known)


@triton.jit
@no_type_check
def idft_tile(
    tile, spectrum, splits, signs, basis, bias, down, other, y, rows, length, width, stride_n, stride_c, stride_l,
    BLOCKS: tl.constexpr, GROUPS: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, AT_ONCE: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, SIGNED: tl.constexpr,
    BIAS: tl.constexpr, SPLIT: tl.constexpr, UNDO: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
    UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """The transpose of `dft_tile`, with ``bias (C)`` added: ``spectrum [F, rows, 2, G*q]`` to ``y (N, C, L)``.

    With ``SPLIT``, of the sum of ``spectrum [splits, F, rows, 2, G*q]``, in order.

    With ``UNDO``, of a product of spectra under scales: times it, and times ``down [1]`` and ``other [1]`` of both.
    """
    F: tl.constexpr = (K + 1) // 2
    ACROSS: tl.constexpr = GROUPS * BLOCKS
    tiles_t: tl.constexpr = (K + BN - 1) // BN
    tiles_j: tl.constexpr = (ACROSS + AT_ONCE - 1) // AT_ONCE
    m = tl.arange(0, ROWS * AT_ONCE)
    row = tile // (tiles_t * tiles_j) * ROWS + m // AT_ONCE
    block = tile // tiles_t % tiles_j * AT_ONCE + m % AT_ONCE
    t = tile % tiles_t * BN + tl.arange(0, BN)
    start = block % BLOCKS * K
    inside = (row < rows) & (block < ACROSS)
    source = spectrum + row.to(INDEX)[:, None] * 2 * ACROSS + block[:, None]
    sums = tl.zeros((ROWS * AT_ONCE, BN), ACC)
    for f0 in range(0, 2 * F, BK):
        f = f0 + tl.arange(0, BK)
        place = (f % F).to(INDEX)[None, :] * rows * 2 * ACROSS + (f // F)[None, :] * ACROSS
        known = inside[:, None] & (f < 2 * F)[None, :]
        values = tl.load(source + place, known, 0.0)
        if SPLIT:
            share = source + place
            for _ in range(1, splits):
                share += 2 * F * ACROSS * rows
                values += tl.load(share, known, 0.0)
        wanted = (f < 2 * F)[:, None] & (t < K)[None, :]
        place = f[:, None] * K + t[None, :]
        scaled: tl.constexpr = values.dtype == tl.float16
        sums += transformed(values, basis, place, wanted, 2 * F * K, scaled, ACC, PRECISION, UPCAST)
    if UNDO > 0:
        first, second = tl.load(down), tl.load(other)  # the smaller first: their product may be within range alone
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
    peaks, x_down, w_down,
    X_BLOCKS: tl.constexpr, X_GROUPS: tl.constexpr, W_BLOCKS: tl.constexpr, W_GROUPS: tl.constexpr, K: tl.constexpr,
    X_ROWS: tl.constexpr, X_AT_ONCE: tl.constexpr, W_ROWS: tl.constexpr, W_AT_ONCE: tl.constexpr,
    BK: tl.constexpr, BN: tl.constexpr, SIGNED: tl.constexpr, PAIR: tl.constexpr,
    X_SHARES: tl.constexpr, W_SHARES: tl.constexpr, X_TOP: tl.constexpr, W_TOP: tl.constexpr, PARTS: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, TF32: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """The spectra of rows and, where ``PAIR``, of weights in the same launch; each under its scale, where it has one.

    ``peaks [X_SHARES + W_SHARES]`` are those of rows, then those of weights.
    """
    wait(EARLY)
    tile = tl.program_id(0)
    if PAIR and tile >= x_tiles:
        dft_tile(
            tile - x_tiles, w, signs, w_basis, peaks + X_SHARES, w_down, w_out, w_rows, w_length, w_width,
            w_stride_n, w_stride_c, w_stride_l,
            W_BLOCKS, W_GROUPS, K, W_ROWS, W_AT_ONCE, BK, BN, False, W_SHARES, W_TOP, PARTS,
            ACC, PRECISION, TF32, UPCAST, INDEX,
        )  # fmt: skip
    else:
        dft_tile(
            tile, x, signs, x_basis, peaks, x_down, x_out, x_rows, x_length, x_width,
            x_stride_n, x_stride_c, x_stride_l,
            X_BLOCKS, X_GROUPS, K, X_ROWS, X_AT_ONCE, BK, BN, SIGNED, X_SHARES, X_TOP, PARTS,
            ACC, PRECISION, TF32, UPCAST, INDEX,
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
    wait(EARLY)
    tile = tl.program_id(0)
    if PAIR and tile < w_tiles:
        idft_tile(
            tile, w_spectrum, splits, signs, w_basis, bias, down, w_other, w, w_rows, w_length, w_width,
            w_stride_n, w_stride_c, w_stride_l,
            W_BLOCKS, W_GROUPS, K, W_ROWS, W_AT_ONCE, BK, BN, False, False, SPLIT, W_UNDO,
            ACC, PRECISION, UPCAST, INDEX,
        )  # fmt: skip
    else:
        idft_tile(
            tile - w_tiles, x_spectrum, 1, signs, x_basis, bias, down, x_other, x, x_rows, x_length, x_width,
            x_stride_n, x_stride_c, x_stride_l,
            X_BLOCKS, X_GROUPS, K, X_ROWS, X_AT_ONCE, BK, BN, SIGNED, BIAS, False, X_UNDO,
            ACC, PRECISION, UPCAST, INDEX,
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


@triton.jit
@no_type_check
def parts(sums, BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr, APART: tl.constexpr):
    """Real and imaginary parts of ``sums``, ``2 * STEP`` columns a tap: the latter ``APART`` from the former."""
    if APART == STEP:
        real, imaginary = tl.split(tl.permute(tl.reshape(sums, (BM, BN // STEP, 2, STEP)), (0, 1, 3, 2)))
        return tl.reshape(real, (BM, BN)), tl.reshape(imaginary, (BM, BN))
    n = tl.arange(0, BN)
    at = tl.broadcast_to((n // STEP * 2 * STEP + n % STEP)[None, :], (BM, BN))
    return tl.gather(sums, at, 1), tl.gather(sums, at + APART, 1)


@triton.jit
@no_type_check
def mix_tile(
    tile, slot, group, a, w, out, rows_a, rows, slots, height, width, out_height, out_width, per_height, per_width,
    P: tl.constexpr, Q: tl.constexpr, GROUPS: tl.constexpr, TAPS: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, POINTWISE: tl.constexpr, BACK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STEP: tl.constexpr, DOWN: tl.constexpr,
    PARTS: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """One frequency of the product: rows times weights, SUMMED over taps and blocks, times ``DOWN``.

    Forward, ``a`` are inputs and the sum is over ``q``; ``BACK``, they are output gradients, conjugate weights are
    used where they lie, and the sum is over ``p``. A complex product is one real product with twice the summed axis:
    taps, then real and imaginary parts, then blocks, as a row holds them; the factor of parts ``c`` and ``d`` is the
    weight's part ``c xor d``, negative for one of the four. Slot 0 is two real products.
    """
    SUMMED: tl.constexpr = P if BACK else Q
    KEPT: tl.constexpr = Q if BACK else P
    FLAT: tl.constexpr = STEP == 0
    AT_ONCE: tl.constexpr = 1 if FLAT else BK // STEP
    PIECES: tl.constexpr = 1 if FLAT else (2 * SUMMED + STEP - 1) // STEP
    TURNS: tl.constexpr = (TAPS * 2 * SUMMED + BK - 1) // BK if FLAT else (TAPS + AT_ONCE - 1) // AT_ONCE * PIECES
    tiles_n = tl.cdiv(KEPT, BN)
    row = tile // tiles_n * BM + tl.arange(0, BM)
    n = tl.arange(0, 2 * BN)
    column = tile % tiles_n * BN + n % BN
    kept_part = n // BN
    weights = w + (slot.to(INDEX) * GROUPS + group) * P * TAPS * 2 * Q
    inputs = a + slot.to(INDEX) * rows_a * 2 * GROUPS * SUMMED + group * SUMMED
    a_apart = slots.to(INDEX) * rows_a * 2 * GROUPS * SUMMED
    w_apart = slots.to(INDEX) * GROUPS * P * TAPS * 2 * Q
    sums = tl.zeros((BM, 2 * BN), ACC)
    if not POINTWISE:
        if BACK:
            image, top, left = origin(row, height, width, per_height, per_width, SH, SW, PH, PW, True)
            met_height, met_width = out_height, out_width
        else:
            image, top, left = origin(row, out_height, out_width, per_height, per_width, SH, SW, PH, PW, False)
            met_height, met_width = height, width
    for turn in range(TURNS):
        s = tl.arange(0, BK)
        if FLAT:
            s += turn * BK
            tap = s * 0 if POINTWISE else s // (2 * SUMMED)
            inner = s if POINTWISE else s % (2 * SUMMED)
        else:
            tap = turn // PIECES * AT_ONCE + s // STEP
            inner = turn % PIECES * STEP + s % STEP
        part = inner // SUMMED
        block = inner % SUMMED
        met = part[:, None] == kept_part[None, :]
        factor_part = tl.where(slot == 0, kept_part[None, :], tl.where(met, 0, 1))
        if BACK:
            there = (block * TAPS + tap)[:, None] * 2 * Q + factor_part * Q + column[None, :]
            negative = (part[:, None] == 0) & (kept_part[None, :] == 1)
        else:
            there = column[None, :] * TAPS * 2 * Q + factor_part * Q + (tap * 2 * Q + block)[:, None]
            negative = (part[:, None] == 1) & (kept_part[None, :] == 0)
        used = (tap < TAPS) & (inner < 2 * SUMMED)
        wanted = used[:, None] & (column < KEPT)[None, :] & (met | (slot > 0))
        factor = tl.load(weights + there, wanted, 0.0)  # first, not to be waited for after the rows
        factor_rest = tl.load(weights + w_apart + there, wanted, 0.0) if PARTS == 2 else factor
        if FLAT:
            source = row[:, None]
            inside = (row < rows)[:, None] & (s < TAPS * 2 * SUMMED)[None, :]
            if not POINTWISE:
                source, met = source_row(
                    image[:, None], top[:, None], left[:, None], tap[None, :], met_height, met_width,
                    KW, SH, SW, DH, DW, BACK,
                )  # fmt: skip
                inside &= met
            # One group's parts are adjacent: said so, the compiler reads them together.
            place = inner if GROUPS == 1 else inner // SUMMED * GROUPS * SUMMED + inner % SUMMED
            here = inputs + source.to(INDEX) * 2 * GROUPS * SUMMED + place[None, :]
            values = tl.load(here, inside, 0.0)
            rest = tl.load(here + a_apart, inside, 0.0) if PARTS == 2 else values
        else:
            # Which row a tap meets is worked out for each row and tap, not for each number of theirs.
            taps = turn // PIECES * AT_ONCE + tl.arange(0, AT_ONCE)
            source, inside = source_row(
                image[:, None], top[:, None], left[:, None], taps[None, :], met_height, met_width,
                KW, SH, SW, DH, DW, BACK,
            )  # fmt: skip
            inside &= (row < rows)[:, None] & (taps < TAPS)[None, :]
            inner = turn % PIECES * STEP + tl.arange(0, STEP)
            place = inner if GROUPS == 1 else inner // SUMMED * GROUPS * SUMMED + inner % SUMMED
            here = (inputs + source.to(INDEX) * 2 * GROUPS * SUMMED)[:, :, None] + place[None, None, :]
            known = inside[:, :, None] & (inner < 2 * SUMMED)[None, None, :]
            values = tl.reshape(tl.load(here, known, 0.0), (BM, BK))
            rest = tl.reshape(tl.load(here + a_apart, known, 0.0), (BM, BK)) if PARTS == 2 else values
        if UPCAST:
            factor, factor_rest = factor.to(ACC), factor_rest.to(ACC)
        factor, factor_rest = tl.where(negative, -factor, factor), tl.where(negative, -factor_rest, factor_rest)
        sums = product(sums, values, rest, factor, factor_rest, PARTS, PRECISION, UPCAST)
    target = out + slot.to(INDEX) * rows * 2 * GROUPS * KEPT + group * KEPT
    target += row.to(INDEX)[:, None] * 2 * GROUPS * KEPT + (kept_part * GROUPS * KEPT + column)[None, :]
    known = (row < rows)[:, None] & (column < KEPT)[None, :]
    tl.store(target, rounded(sums * DOWN, out.dtype.element_ty, UPCAST), known)


@triton.jit
@no_type_check
def mix_weight_tile(
    tile, slot, group, dy, x, out, rows_out, rows_in, slots, height, width, out_height, out_width,
    per_height, per_width, splits,
    P: tl.constexpr, Q: tl.constexpr, GROUPS: tl.constexpr, TAPS: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, POINTWISE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STEP: tl.constexpr, PARTS: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """One frequency of the weight gradient, output gradients times conjugate inputs, SUMMED over a share of the rows.

    A real product: its columns are taps, ``2 * STEP`` to each, then inputs' real and imaginary parts, then blocks, side
    by side as in memory; gradients' parts are its rows, both in one tile where that needs to be high enough.
    ``out [splits, F, G*P*taps, 2, Q]``: shares are added afterwards, in a fixed order.
    """
    STACKED: tl.constexpr = BM < 16
    AT_ONCE: tl.constexpr = BN // STEP
    PIECES: tl.constexpr = (Q + STEP - 1) // STEP
    tiles_n: tl.constexpr = (TAPS + AT_ONCE - 1) // AT_ONCE * PIECES
    tiles_m = tl.cdiv(P, BM)
    start = tile // tiles_n % tiles_m * BM
    split = tile // (tiles_n * tiles_m)
    first = tile % tiles_n // PIECES * AT_ONCE
    piece = tile % PIECES * STEP
    share = tl.cdiv(tl.cdiv(rows_out, BK), splits) * BK
    last = tl.minimum((split + 1) * share, rows_out)
    m = tl.arange(0, 2 * BM if STACKED else BM)
    i = start + m % BM
    gradients = dy + slot.to(INDEX) * rows_out * 2 * GROUPS * P + group * P
    gradients += (m if BM == P and GROUPS == 1 else m // BM * GROUPS * P + i)[:, None]
    n = tl.arange(0, 2 * BN)
    tap = first + n // (2 * STEP)
    inner = n % (2 * STEP)
    if PIECES == 1:
        wanted = (tap < TAPS) & (inner < 2 * Q)
        # One group's parts are adjacent: said so, the compiler reads them together.
        place = inner if GROUPS == 1 else inner // Q * GROUPS * Q + inner % Q
    else:
        wanted = (tap < TAPS) & (piece + inner % STEP < Q)
        place = inner // STEP * GROUPS * Q + piece + inner % STEP
    inputs = x + slot.to(INDEX) * rows_in * 2 * GROUPS * Q + group * Q + place[None, :]
    dy_apart = slots.to(INDEX) * rows_out * 2 * GROUPS * P
    x_apart = slots.to(INDEX) * rows_in * 2 * GROUPS * Q
    sums = tl.zeros((2 * BM if STACKED else BM, 2 * BN), ACC)
    more = tl.zeros((BM, 2 * BN), ACC)
    for r0 in range(split * share, last, BK):
        row = r0 + tl.arange(0, BK)
        known = (i < P)[:, None] & (row < last)[None, :]
        here = gradients + row.to(INDEX)[None, :] * 2 * GROUPS * P
        values = tl.load(here, known, 0.0)
        rest = tl.load(here + dy_apart, known, 0.0) if PARTS == 2 else values
        if not STACKED:
            imaginary_values = tl.load(here + GROUPS * P, known, 0.0)
            imaginary_rest = tl.load(here + dy_apart + GROUPS * P, known, 0.0) if PARTS == 2 else imaginary_values
        source = row[:, None]
        inside = (row < last)[:, None] & wanted[None, :]
        if not POINTWISE:
            image, top, left = origin(row, out_height, out_width, per_height, per_width, SH, SW, PH, PW, False)
            source, there = source_row(
                image[:, None], top[:, None], left[:, None], tap[None, :], height, width,
                KW, SH, SW, DH, DW, False,
            )  # fmt: skip
            inside &= there
        here = inputs + source.to(INDEX) * 2 * GROUPS * Q
        factor = tl.load(here, inside, 0.0)
        factor_rest = tl.load(here + x_apart, inside, 0.0) if PARTS == 2 else factor
        sums = product(sums, values, rest, factor, factor_rest, PARTS, PRECISION, UPCAST)
        if not STACKED:
            more = product(more, imaginary_values, imaginary_rest, factor, factor_rest, PARTS, PRECISION, UPCAST)
    if STACKED:
        sums, more = tl.split(tl.permute(tl.reshape(sums, (2, BM, 2 * BN)), (1, 2, 0)))
    rr, ri = parts(sums, BM, BN, STEP, Q if PIECES == 1 else STEP)
    ir, ii = parts(more, BM, BN, STEP, Q if PIECES == 1 else STEP)
    real, imaginary = tl.where(slot == 0, rr, rr + ii), tl.where(slot == 0, ii, ir - ri)  # slot 0: two real products
    i = start + tl.arange(0, BM)
    n = tl.arange(0, BN)
    tap = first + n // STEP
    block = piece + n % STEP
    place = ((split.to(INDEX) * slots + slot) * GROUPS + group) * P * TAPS * 2 * Q
    place += (i[:, None] * TAPS + tap[None, :]) * 2 * Q + block[None, :]
    known = (i < P)[:, None] & ((tap < TAPS) & (block < Q))[None, :]
    tl.store(out + place, rounded(real, out.dtype.element_ty, UPCAST), known)
    tl.store(out + place + Q, rounded(imaginary, out.dtype.element_ty, UPCAST), known)


@triton.jit(do_not_specialize=("per_height", "per_width"))
@no_type_check
def mix_kernel(
    a, w, out, rows_a, rows, tiles, slots, height, width, out_height, out_width, per_height, per_width,
    P: tl.constexpr, Q: tl.constexpr, GROUPS: tl.constexpr,
    TAPS: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, POINTWISE: tl.constexpr, BACK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STEP: tl.constexpr, DOWN: tl.constexpr,
    PARTS: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Every frequency of the product, or with ``BACK`` of the input gradient."""
    wait(EARLY)
    matrix = tl.program_id(0) // tiles
    mix_tile(
        tl.program_id(0) % tiles, matrix // GROUPS, matrix % GROUPS, a, w, out, rows_a, rows, slots,
        height, width, out_height, out_width, per_height, per_width,
        P, Q, GROUPS, TAPS, KW, SH, SW, PH, PW, DH, DW, POINTWISE, BACK,
        BM, BN, BK, STEP, DOWN, PARTS, ACC, PRECISION, UPCAST, INDEX,
    )  # fmt: skip


@triton.jit(do_not_specialize=("per_height", "per_width", "per_out_height", "per_out_width"))
@no_type_check
def mix_grads_kernel(
    dy, x, w, dx, dw, rows_in, rows_out, data_tiles, tiles, slots,
    height, width, out_height, out_width, per_height, per_width, per_out_height, per_out_width, splits,
    P: tl.constexpr, Q: tl.constexpr, GROUPS: tl.constexpr,
    TAPS: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, POINTWISE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STEP: tl.constexpr,
    W_BM: tl.constexpr, W_BN: tl.constexpr, W_BK: tl.constexpr, W_STEP: tl.constexpr, DOWN: tl.constexpr,
    PARTS: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr, W_PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    INDEX: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Every frequency of both gradients in one launch; without data tiles, of the weight gradient alone."""
    wait(EARLY)
    matrix = tl.program_id(0) // tiles
    slot = matrix // GROUPS
    tile = tl.program_id(0) % tiles
    if tile < data_tiles:
        mix_tile(
            tile, slot, matrix % GROUPS, dy, w, dx, rows_out, rows_in, slots,
            height, width, out_height, out_width, per_height, per_width,
            P, Q, GROUPS, TAPS, KW, SH, SW, PH, PW, DH, DW, POINTWISE, True,
            BM, BN, BK, STEP, DOWN, PARTS, ACC, PRECISION, UPCAST, INDEX,
        )  # fmt: skip
    else:
        mix_weight_tile(
            tile - data_tiles, slot, matrix % GROUPS, dy, x, dw, rows_out, rows_in, slots,
            height, width, out_height, out_width, per_out_height, per_out_width, splits,
            P, Q, GROUPS, TAPS, KW, SH, SW, PH, PW, DH, DW, POINTWISE,
            W_BM, W_BN, W_BK, W_STEP, PARTS, ACC, W_PRECISION, UPCAST, INDEX,
        )  # fmt: skip


def mix_cost(window: Window, p: int, q: int, slots: int, spectral_bytes: int) -> Cost:
    """One of the three frequency-wise products: four real multiply-adds for each complex one."""
    x, y = window.rows_in * window.groups * q, window.rows_out * window.groups * p
    w = window.groups * p * q * window.taps
    return Cost(8 * slots * window.rows_out * w, 2 * slots * (x + w) * spectral_bytes, 2 * slots * y * spectral_bytes)

"""Products of spectra on tensor cores, frequency by frequency, and their gradients.

Letters, layouts and switches are those of the transforms. ``STEP`` says how many numbers of one tap lie side by side in
a tile of several, 0 where taps are not told apart.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.methods.circulant.window import Window
from lamina.accelerate.runtime.triton_utils import origin, rounded, source_row, wait
from lamina.spec import Cost


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
    a_apart = tl.cast(slots, INDEX) * rows_a * 2 * GROUPS * SUMMED
    w_apart = tl.cast(slots, INDEX) * GROUPS * P * TAPS * 2 * Q
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
    dy_apart = tl.cast(slots, INDEX) * rows_out * 2 * GROUPS * P
    x_apart = tl.cast(slots, INDEX) * rows_in * 2 * GROUPS * Q
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

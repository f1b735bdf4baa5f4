"""Float16 halves of float32 tensors, and convolutions of them on tensor cores.

The power of two that brings a tensor's largest number to where float16 is finest is found without a second launch, a
wait or an order of additions: each program writes the largest number of its share, and who needs the whole reads all of
these, which are few.

Letters of convolutions: a *row* is one pixel of one example, ``G`` groups; rows are ``[PARTS, rows, G*channels]`` and
weights ``[PARTS, G*outputs, taps, inputs]``, each part ``apart`` from the one before. Of two parts on either side three
products are summed; the fourth, of what is left of both, is less than float32 keeps. Tensor cores cut sums off where
float32 would round them, and that adds up: only as many products as a step has are left to them.

Common compile-time switches: ``SHARES`` of peaks, 0 where tensors are not scaled; ``KW`` to ``DW`` the window;
``UPCAST`` multiplies in float32 (the interpreter cannot multiply bf16); ``INDEX`` the type of addresses.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.common.split_fp16 import reference
from lamina.accelerate.runtime.triton_utils import origin, rounded, source_row, wait
from lamina.spec import Cost

SHARES = 512
"""Shares of a tensor, at most; a power of two."""

TOP = reference.TOP
"""Where the largest number lies: float16 ends before 2**16, so that sums of eight of them still fit, and is at full
precision from 2**-14 up."""


@triton.jit
@no_type_check
def largest(x, numel, share, shares, every, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """The largest finite magnitude of one share of ``x [numel]``, of which one block of ``every`` is looked at."""
    most = tl.zeros((BLOCK,), tl.float32)
    for first in range(share.to(INDEX) * every * BLOCK, numel, shares.to(INDEX) * every * BLOCK):
        at = first + tl.arange(0, BLOCK)
        values = tl.abs(tl.load(x + at, at < numel, 0.0).to(tl.float32))
        most = tl.maximum(most, tl.where(values < float("inf"), values, 0.0))
    return tl.max(most, 0)


@triton.jit
@no_type_check
def peaks_kernel(x, out, numel, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """The largest finite magnitude of each share of ``x [numel]`` to ``out [programs]``."""
    tl.store(out + tl.program_id(0), largest(x, numel, tl.program_id(0), tl.num_programs(0), 1, BLOCK, INDEX))


@triton.jit(do_not_specialize=("x_shares", "y_shares"))
@no_type_check
def pair_peaks_kernel(
    x, y, out, misled, x_numel, y_numel, x_shares, y_shares, EVERY: tl.constexpr, AGAIN: tl.constexpr,
    BLOCK: tl.constexpr, INDEX: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The largest finite magnitude of each share of ``x``, then of each of ``y``; ``EARLY`` as circulant's kernels.

    Of ``x`` one block of ``EVERY`` is looked at. Where that has misled who used it, ``misled [1]``, all are ``AGAIN``.
    """
    wait(EARLY)
    program = tl.program_id(0)
    wanted = True
    if AGAIN:
        wanted = tl.load(misled) > 0
    elif EVERY > 1:
        tl.store(misled, 0, program == 0)
    if wanted:
        if program < x_shares:
            peak = largest(x, x_numel, program, x_shares, EVERY, BLOCK, INDEX)
        else:
            peak = largest(y, y_numel, program - x_shares, y_shares, 1, BLOCK, INDEX)
        tl.store(out + program, peak)


@triton.jit
@no_type_check
def scale(peaks, SHARES: tl.constexpr, TOP: tl.constexpr):
    """The power of two, and what undoes it, from ``peaks [SHARES]``; one where no finite number is but zero."""
    return powers(tl.load(peaks + tl.arange(0, SHARES)), TOP)


@triton.jit
@no_type_check
def powers(peaks, TOP: tl.constexpr):
    """`scale` of peaks that have been read, which may be long before they are needed."""
    return power(tl.max(peaks, 0), TOP)


@triton.jit
@no_type_check
def power(peak, TOP: tl.constexpr):
    """Powers of two, and what undoes them, that bring each ``peak`` to ``2**TOP``; one for zero and infinity."""
    exponent = (peak.to(tl.int32, bitcast=True) >> 23) - 127
    exponent = tl.where((peak > 0) & (exponent < 128), exponent, TOP)
    shift = tl.minimum(tl.maximum(TOP - exponent, -126), 126)
    up = ((127 + shift) << 23).to(tl.float32, bitcast=True)
    down = ((127 - shift) << 23).to(tl.float32, bitcast=True)
    return up, down


@triton.jit
@no_type_check
def halves(values):
    """float32 ``values`` rounded to float16, and what that left of those that are finite."""
    high = values.to(tl.float16)
    kept = high.to(tl.float32)
    finite = tl.abs(kept) < float("inf")
    rest = tl.where(finite, values, 0.0) - tl.where(finite, kept, 0.0)
    return high, rest.to(tl.float16)


@triton.jit
@no_type_check
def split_kernel(
    x, peaks, out, length, channels, tiles_l, tiles_c, stride_n, stride_c, stride_l, apart,
    PARTS: tl.constexpr, SHARES: tl.constexpr, TOP: tl.constexpr, BL: tl.constexpr, BC: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """``x (N, C, L)`` of any strides to ``out [PARTS, N*L, C]``, ``apart`` numbers a part; unscaled without shares."""
    c = tl.program_id(0) % tiles_c * BC + tl.arange(0, BC)
    image = tl.program_id(0) // (tiles_c * tiles_l)
    pixel = tl.program_id(0) // tiles_c % tiles_l * BL + tl.arange(0, BL)
    known = (pixel < length)[:, None] & (c < channels)[None, :]
    place = pixel.to(INDEX)[:, None] * stride_l + c.to(INDEX)[None, :] * stride_c
    values = tl.load(x + image.to(INDEX) * stride_n + place, known, 0.0)
    place = (image.to(INDEX) * length + pixel)[:, None] * channels + c[None, :]
    if SHARES:
        high, rest = halves(values.to(tl.float32) * scale(peaks, SHARES, TOP)[0])
        tl.store(out + place, high, known)
        if PARTS == 2:
            tl.store(out + apart + place, rest, known)
    else:
        tl.store(out + place, values, known)


def split_cost(numel: int, parts: int, io_bytes: int) -> Cost:
    """A read of the tensor, and a write of its halves."""
    return Cost(0, numel * io_bytes, numel * parts * 2)


@triton.jit
@no_type_check
def put(
    sums, place, c, inside, channels: tl.constexpr, stride_c, UPCAST: tl.constexpr, INDEX: tl.constexpr
):  # fmt: skip
    """Numbers to rows at ``place``, channels ``c`` of them."""
    stored = rounded(sums, place.dtype.element_ty, UPCAST)
    tl.store(place[:, None] + (c.to(INDEX) * stride_c)[None, :], stored, inside[:, None] & (c < channels)[None, :])


@triton.jit
@no_type_check
def product_kernel(
    a, w, bias, a_peaks, w_peaks, out, rows, tiles_m, height, width, a_height, a_width, per_height, per_width, a_apart,
    w_apart, stride_n, stride_c, stride_l,
    SUMMED: tl.constexpr, KEPT: tl.constexpr, GROUPS: tl.constexpr, TAPS: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    BACK: tl.constexpr, PARTS: tl.constexpr, A_SHARES: tl.constexpr, W_SHARES: tl.constexpr, TOP: tl.constexpr,
    BIAS: tl.constexpr, LAST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, UPCAST: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """A convolution ``a [PARTS, rows_a, G*SUMMED]`` to ``out (N, G*KEPT, L)`` of any strides; ``BACK``, its transpose.

    Rows of ``out`` are pixels of ``height`` by ``width``.
    """
    TILES_N: tl.constexpr = (KEPT + BN - 1) // BN
    STEPS: tl.constexpr = (SUMMED + BK - 1) // BK
    EVEN: tl.constexpr = SUMMED % BK == 0 and KEPT % BN == 0
    group = tl.program_id(0) // (tiles_m * TILES_N)
    row = tl.program_id(0) // TILES_N % tiles_m * BM + tl.arange(0, BM)
    n = tl.program_id(0) % TILES_N * BN + tl.arange(0, BN)
    image, top, start = origin(row, height, width, per_height, per_width, SH, SW, PH, PW, BACK)
    k = tl.arange(0, BK)
    if BACK:
        weights = w + (group * SUMMED * TAPS * KEPT + k[:, None] * TAPS * KEPT + n[None, :])
    else:
        weights = w + (group * KEPT * TAPS * SUMMED + n[None, :] * TAPS * SUMMED + k[:, None])
    if A_SHARES:
        a_most = tl.load(a_peaks + tl.arange(0, A_SHARES))
        w_most = tl.load(w_peaks + tl.arange(0, W_SHARES))
    sums = tl.zeros((BM, BN), tl.float32)
    for step in range(TAPS * STEPS):
        tap = step // STEPS
        k0 = step % STEPS * BK
        source, inside = source_row(image, top, start, tap, a_height, a_width, KW, SH, SW, DH, DW, BACK)
        inside &= row < rows
        place = a + ((source.to(INDEX) * (GROUPS * SUMMED) + group * SUMMED)[:, None] + (k0 + k)[None, :])
        if BACK:
            there = weights + (k0 * TAPS + tap) * KEPT
        else:
            there = weights + (tap * SUMMED + k0)
        if EVEN:
            known = inside[:, None]
            left = tl.load(place, known, 0.0)
            right = tl.load(there)
        else:
            known = inside[:, None] & (k0 + k < SUMMED)[None, :]
            wanted = (k0 + k < SUMMED)[:, None] & (n < KEPT)[None, :]
            left = tl.load(place, known, 0.0)
            right = tl.load(there, wanted, 0.0)
        if UPCAST:
            left, right = left.to(tl.float32), right.to(tl.float32)
        if PARTS == 2:
            left_rest = tl.load(place + a_apart, known, 0.0)
            if EVEN:
                right_rest = tl.load(there + w_apart)
            else:
                right_rest = tl.load(there + w_apart, wanted, 0.0)
            if UPCAST:
                left_rest, right_rest = left_rest.to(tl.float32), right_rest.to(tl.float32)
            few = tl.dot(left, right_rest, tl.dot(left_rest, right))
            sums += tl.dot(left, right, few)
        else:
            sums = tl.dot(left, right, sums)
    if A_SHARES:
        sums = sums * powers(a_most, TOP)[1] * powers(w_most, TOP)[1]
    if BIAS:
        sums += tl.load(bias + group * KEPT + n, n < KEPT, 0.0).to(tl.float32)[None, :]
    # Where a line of 16 is broken, strides forbid to write it at once.
    pixel = tl.max_contiguous(row - image * (height * width), 16)
    place = out + (image.to(INDEX) * stride_n + pixel.to(INDEX) * stride_l + (group * KEPT).to(INDEX) * stride_c)
    if LAST:
        put(sums, place, n, row < rows, KEPT, stride_c, UPCAST, INDEX)
    else:  # by halves, since each number has an address
        c = tl.program_id(0) % TILES_N * BN + tl.arange(0, BN // 2)
        some, others = tl.split(tl.permute(tl.reshape(sums, (BM, 2, BN // 2)), (0, 2, 1)))
        put(some, place, c, row < rows, KEPT, stride_c, UPCAST, INDEX)
        put(others, place, c + BN // 2, row < rows, KEPT, stride_c, UPCAST, INDEX)


@triton.jit
@no_type_check
def gradient_kernel(
    dy, a, dy_peaks, a_peaks, out, rows, per_share, height, width, a_height, a_width, per_height, per_width,
    dy_apart, a_apart,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, GROUPS: tl.constexpr, TAPS: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    PARTS: tl.constexpr, DY_SHARES: tl.constexpr, A_SHARES: tl.constexpr, TOP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """One share of rows of a weight gradient: to ``out [shares, G*OUTPUTS, TAPS, INPUTS]``.

    ``dy [PARTS, rows, G*OUTPUTS]`` has pixels of ``height`` by ``width``, ``a [PARTS, rows_a, G*INPUTS]`` is the input.
    """
    TILES_M: tl.constexpr = (OUTPUTS + BM - 1) // BM
    TILES_N: tl.constexpr = (TAPS * INPUTS + BN - 1) // BN
    EVEN: tl.constexpr = INPUTS % BN == 0
    m = tl.program_id(0) // TILES_N % TILES_M * BM + tl.arange(0, BM)
    group = tl.program_id(0) // (TILES_N * TILES_M) % GROUPS
    share = tl.program_id(0) // (TILES_N * TILES_M * GROUPS)
    n = tl.program_id(0) % TILES_N * BN + tl.arange(0, BN)
    if EVEN:
        tap = tl.program_id(0) % TILES_N * BN // INPUTS
    else:
        tap = (n // INPUTS)[None, :]
    first = share * per_share
    last = tl.minimum(first + per_share, rows)
    if A_SHARES:
        dy_most = tl.load(dy_peaks + tl.arange(0, DY_SHARES))
        a_most = tl.load(a_peaks + tl.arange(0, A_SHARES))
    sums = tl.zeros((BM, BN), tl.float32)
    for r0 in range(first, last, BK):
        row = r0 + tl.arange(0, BK)
        image, y, x = origin(row, height, width, per_height, per_width, SH, SW, PH, PW, False)
        source, inside = source_row(
            image[:, None], y[:, None], x[:, None], tap, a_height, a_width, KW, SH, SW, DH, DW, False
        )
        inside &= (row < last)[:, None]
        if not EVEN:
            inside &= (n < TAPS * INPUTS)[None, :]
        place = a + (source.to(INDEX) * (GROUPS * INPUTS) + group * INPUTS + (n % INPUTS)[None, :])
        there = dy + (row.to(INDEX) * (GROUPS * OUTPUTS) + group * OUTPUTS)[:, None] + m[None, :]
        known = (row < last)[:, None] & (m < OUTPUTS)[None, :]
        left = tl.load(there, known, 0.0)
        right = tl.load(place, inside, 0.0)
        if UPCAST:
            left, right = left.to(tl.float32), right.to(tl.float32)
        if PARTS == 2:
            left_rest = tl.load(there + dy_apart, known, 0.0)
            right_rest = tl.load(place + a_apart, inside, 0.0)
            if UPCAST:
                left_rest, right_rest = left_rest.to(tl.float32), right_rest.to(tl.float32)
            few = tl.dot(tl.trans(left), right_rest, tl.dot(tl.trans(left_rest), right))
            sums += tl.dot(tl.trans(left), right, few)
        else:
            sums = tl.dot(tl.trans(left), right, sums)
    if A_SHARES:
        sums = sums * powers(dy_most, TOP)[1] * powers(a_most, TOP)[1]
    place = ((share * GROUPS + group) * OUTPUTS + m)[:, None].to(INDEX) * (TAPS * INPUTS) + n[None, :]
    tl.store(out + place, sums, (m < OUTPUTS)[:, None] & (n < TAPS * INPUTS)[None, :])


def conv_cost(rows: int, outputs: int, inputs: int, taps: int, parts: int) -> Cost:
    """Each phase of a convolution of ``rows`` output pixels: what is multiplied, and halves and results once."""
    products = {1: 1, 2: 3}[parts]
    return Cost(
        2 * products * rows * outputs * inputs * taps,
        2 * parts * (rows * inputs + outputs * inputs * taps),
        4 * rows * outputs,
    )

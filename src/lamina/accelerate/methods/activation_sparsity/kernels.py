"""Kernels that find non-zeros and multiply by them alone.

A map ``x`` of any strides is read as the matrix that a convolution multiplies: row ``tap * channels + channel``, column
``image * pixels + pixel`` of the output. A matrix is a map under a window of one pixel. Programs own their columns, so
nothing is added atomically and every result is the same each time.

Common compile-time switches: ``KH`` to ``DW`` the window; ``INSIDE``, no tap is ever outside the image;
``SINGLE``, the map is a matrix of one row of pixels; ``UPCAST``
computes narrow types in float32 (the interpreter cannot multiply bf16); ``INDEX`` the type of addresses.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.common.split_fp16.kernels import split_hi_lo
from lamina.accelerate.methods.activation_sparsity.split_fp16.kernels import (
    added,
    finite_peak,
    has_nan,
    power_of_two,
    scaled_back,
    shift_of,
)
from lamina.accelerate.runtime.triton_utils import rounded
from lamina.spec import Cost


@triton.jit
@no_type_check
def window_tile(
    x, row, column, rows, columns, channels, pixels, out_width, height, width, x_n, x_c, x_h, x_w,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, INSIDE: tl.constexpr, SINGLE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """The matrix at some rows and columns, zero outside it."""
    if SINGLE:  # whose neighbours are then known to be neighbours
        place = (row.to(INDEX) * x_c)[:, None] + (column.to(INDEX) * x_w)[None, :]
        return tl.load(x + place, (row < rows)[:, None] & (column < columns)[None, :], 0.0)
    image = column // pixels
    top = column % pixels // out_width * SH - PH
    left = column % pixels % out_width * SW - PW
    base = image.to(INDEX) * x_n + top.to(INDEX) * x_h + left.to(INDEX) * x_w
    tap = row // channels
    down = tap // KW * DH
    right = tap % KW * DW
    offset = (row % channels).to(INDEX) * x_c + down.to(INDEX) * x_h + right.to(INDEX) * x_w
    known = (row < rows)[:, None] & (column < columns)[None, :]
    if not INSIDE:
        h = top[None, :] + down[:, None]
        v = left[None, :] + right[:, None]
        known = known & (h >= 0) & (h < height) & (v >= 0) & (v < width)
    return tl.load(x + (offset[:, None] + base[None, :]), known, 0.0)


@triton.jit
@no_type_check
def scale_kernel(found, scales, programs, panels, LARGEST: tl.constexpr, BLOCK: tl.constexpr):
    """The power of two that brings the largest of ``found`` to ``2 ** LARGEST``, for every panel."""
    program = tl.arange(0, BLOCK)
    largest = tl.max(tl.load(found + program, program < programs, 0.0), axis=0)
    power = tl.minimum(tl.maximum((largest.to(tl.int32, bitcast=True) >> 23) - 127 - LARGEST, -120), 120)
    scale = tl.where(largest > 0, ((power + 127) << 23).to(tl.float32, bitcast=True), 1.0)
    for first in range(0, panels, BLOCK):
        panel = first + tl.arange(0, BLOCK)
        tl.store(scales + panel, tl.zeros((BLOCK,), tl.float32) + scale, panel < panels)


@triton.jit
@no_type_check
def convert_kernel(
    x, words, counts, scales, rows, columns, panel, capacity, channels, pixels, out_width, height, width,
    x_n, x_c, x_h, x_w,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, INSIDE: tl.constexpr, SINGLE: tl.constexpr, STORE: tl.constexpr,
    BK: tl.constexpr, BN: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Columns of one panel to ELLPACK-DIB, in the order of their rows; without ``STORE`` they are only counted."""
    tiles = tl.cdiv(columns, BN)
    column = tl.program_id(0) % tiles * BN + tl.arange(0, BN)
    p = tl.program_id(0) // tiles
    first = p * panel
    last = tl.minimum(first + panel, rows)
    if STORE:
        inverse = 1.0 / tl.load(scales + p)
    taken = tl.zeros((BN,), tl.int32)
    start = p.to(INDEX) * capacity * columns + column
    for k0 in range(first, last, BK):
        row = k0 + tl.arange(0, BK)
        value = window_tile(
            x, row, column, last, columns, channels, pixels, out_width, height, width, x_n, x_c, x_h, x_w,
            KH, KW, SH, SW, PH, PW, DH, DW, INSIDE, SINGLE, INDEX,
        ).to(tl.float32)  # fmt: skip
        present = (value != 0).to(tl.int32)
        if STORE:
            slot = taken[None, :] + tl.cumsum(present, axis=0) - present
            low = (value * inverse).to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
            word = ((row - first) << 16)[:, None] | low
            place = start[None, :] + slot.to(INDEX) * columns
            tl.store(words + place, word, (present != 0) & (slot < capacity))
        taken += tl.sum(present, axis=0)
    tl.store(counts + p.to(INDEX) * columns + column, taken, column < columns)


@triton.jit
@no_type_check
def restore_kernel(
    words, counts, scales, y, columns, panel, capacity, pixels, y_n, y_c, y_p,
    BN: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """ELLPACK-DIB of a map back into ``y``, which holds zeros beforehand; columns that did not fit are NaN."""
    tiles = tl.cdiv(columns, BN)
    column = tl.program_id(0) % tiles * BN + tl.arange(0, BN)
    p = tl.program_id(0) // tiles
    count = tl.load(counts + p.to(INDEX) * columns + column, column < columns, 0)
    scale = tl.where(count > capacity, float("nan"), tl.load(scales + p))
    start = p.to(INDEX) * capacity * columns + column
    base = (column // pixels).to(INDEX) * y_n + (column % pixels).to(INDEX) * y_p
    for slot in range(0, tl.minimum(tl.max(count, axis=0), capacity)):  # noqa: PIE808
        live = slot < count
        word = tl.load(words + (start + tl.cast(slot, INDEX) * columns), live, 0)
        value = (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * scale
        row = p * panel + ((word >> 16) & 0xFFFF)
        tl.store(y + (base + row.to(INDEX) * y_c), rounded(value, y.dtype.element_ty, UPCAST), live)
    if capacity == 0:
        tl.store(y + (base + (p * panel).to(INDEX) * y_c), scale.to(y.dtype.element_ty), count > 0)


@triton.jit
@no_type_check
def nonzero_kernel(
    at, bias, words, counts, scales, y, outputs, columns, rows, panel, panels, capacity, sources, pixels, out_width,
    height, width, y_n, y_m, y_p,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    UNROLL: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``y[m, column] = bias[m] + sum over taps and non-zeros of at[tap * rows + row, m] * value``.

    The format holds the map itself, ``rows`` channels by ``sources`` pixels; each tap looks up the column of its own
    pixel. Columns that did not fit their slots give NaN.
    """
    tiles_m = tl.cdiv(outputs, BM)
    m = tl.program_id(0) % tiles_m * BM + tl.arange(0, BM)
    column = tl.program_id(0) // tiles_m * BN + tl.arange(0, BN)
    image = column // pixels
    top = column % pixels // out_width * SH - PH
    left = column % pixels % out_width * SW - PW
    in_m = (m < outputs)[None, :]
    unfit = tl.zeros((BN,), tl.int32)
    sums = tl.zeros((BN, BM), tl.float32)
    for step in range(panels * KH * KW):
        p = step // (KH * KW)
        tap = step % (KH * KW)
        h = top + tap // KW * DH
        v = left + tap % KW * DW
        inside = (column < columns) & (h >= 0) & (h < height) & (v >= 0) & (v < width)
        source = image * (height * width) + h * width + v
        count = tl.load(counts + tl.cast(p, INDEX) * sources + source, inside, 0)
        unfit = tl.maximum(unfit, (count > capacity).to(tl.int32))
        count = tl.minimum(count, capacity)
        scale = tl.load(scales + p)
        start = tl.cast(p, INDEX) * capacity * sources + source
        above = tl.cast(tap, INDEX) * rows + p * panel
        for first in range(0, tl.max(count, axis=0), UNROLL):
            for ahead in tl.static_range(UNROLL):
                slot = first + ahead
                live = slot < count
                word = tl.load(words + (start + tl.cast(slot, INDEX) * sources), live, 0)
                value = (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * scale
                place = (above + ((word >> 16) & 0xFFFF)).to(INDEX) * outputs
                a = tl.load(at + (place[:, None] + m[None, :]), live[:, None] & in_m, 0.0).to(tl.float32)
                sums += tl.where(live, value, 0.0)[:, None] * a
    if BIAS:
        sums += tl.load(bias + m, m < outputs, 0.0).to(tl.float32)[None, :]
    sums = tl.where((unfit > 0)[:, None], float("nan"), sums)
    place = (image.to(INDEX) * y_n + (column % pixels).to(INDEX) * y_p)[:, None] + (m.to(INDEX) * y_m)[None, :]
    tl.store(y + place, rounded(sums, y.dtype.element_ty, UPCAST), (column < columns)[:, None] & in_m)


@triton.jit
@no_type_check
def flag_kernel(
    x, flags, peaks, rows, columns, channels, pixels, out_width, height, width, x_n, x_c, x_h, x_w,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, INSIDE: tl.constexpr, SINGLE: tl.constexpr, X: tl.constexpr, BK: tl.constexpr,
    BN: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """For each tile of ``BN`` columns, which rows have a non-zero there: int8 ``flags [tiles, rows]``.

    For halves also the largest finite magnitude of each block of rows, ``peaks [tiles, blocks]``.
    """
    blocks = tl.cdiv(rows, BK)
    tile = tl.program_id(0) // blocks
    row = tl.program_id(0) % blocks * BK + tl.arange(0, BK)
    column = tile * BN + tl.arange(0, BN)
    value = window_tile(
        x, row, column, rows, columns, channels, pixels, out_width, height, width, x_n, x_c, x_h, x_w,
        KH, KW, SH, SW, PH, PW, DH, DW, INSIDE, SINGLE, INDEX,
    ).to(tl.float32)  # fmt: skip
    flag = tl.max((value != 0).to(tl.int32), axis=1)
    tl.store(flags + tile.to(INDEX) * rows + row, flag.to(tl.int8), row < rows)
    if X:
        tl.store(peaks + tl.program_id(0), finite_peak(value))


@triton.jit
@no_type_check
def list_kernel(flags, lists, lengths, rows, BK: tl.constexpr, INDEX: tl.constexpr):
    """A tile's flags as a list of rows, in their order."""
    tile = tl.program_id(0).to(INDEX)
    taken = 0
    for k0 in range(0, rows, BK):
        row = k0 + tl.arange(0, BK)
        flag = tl.load(flags + tile * rows + row, row < rows, 0).to(tl.int32)
        place = taken + tl.cumsum(flag, axis=0) - flag
        tl.store(lists + tile * rows + place, row, flag != 0)
        taken += tl.sum(flag, axis=0)
    tl.store(lengths + tile, taken)


@triton.jit
@no_type_check
def union_sums(
    at, at_low, x, listed, length, up, outputs, columns, rows, channels, pixels, out_width, height, width,
    x_n, x_c, x_h, x_w, m, column,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, INSIDE: tl.constexpr, SINGLE: tl.constexpr,
    X: tl.constexpr, W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, UPCAST: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """A tile ``[BN, BM]`` of the product over listed rows."""
    sums = tl.zeros((BN, BM), tl.float32)
    k = tl.arange(0, BK)
    ahead = tl.load(listed + k, k < length, rows)
    for _ in range(0, length, BK):
        row = ahead
        k += BK
        ahead = tl.load(listed + k, k < length, rows)
        known = (row < rows)[:, None] & (m < outputs)[None, :]
        place = row.to(INDEX)[:, None] * outputs + m[None, :]
        a = tl.load(at + place, known, 0.0)
        a_low = a
        if W == 2:
            a_low = tl.load(at_low + place, known, 0.0)
        b = tl.trans(window_tile(
            x, row, column, rows, columns, channels, pixels, out_width, height, width, x_n, x_c, x_h, x_w,
            KH, KW, SH, SW, PH, PW, DH, DW, INSIDE, SINGLE, INDEX,
        ))  # fmt: skip
        b_low = b
        if X:
            b, b_low = split_hi_lo(b.to(tl.float32) * up)
        sums = added(sums, b, b_low, a, a_low, X, W, UPCAST)
    return sums


@triton.jit
@no_type_check
def union_kernel(
    at, at_low, at_peaks, bias, x, peaks, lists, lengths, y, outputs, columns, rows, channels, parts, pixels,
    out_width, height, width, x_n, x_c, x_h, x_w, y_n, y_m, y_p,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, INSIDE: tl.constexpr, SINGLE: tl.constexpr, BIAS: tl.constexpr,
    X: tl.constexpr, W: tl.constexpr, PARTS: tl.constexpr, SHARES: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, UPCAST: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """``y[m, column] = bias[m] + sum of at[row, m] * x[row, column]`` over the rows that the column's tile lists.

    Programs go down ``GROUP`` column tiles before they go on to other outputs, so that those that run together share
    what L2 holds. What becomes halves does so in registers, each tile of columns under a power of two of its own.
    """
    tiles_m = tl.cdiv(outputs, BM)
    tiles_n = tl.cdiv(columns, BN)
    head = tl.program_id(0) // (GROUP * tiles_m) * GROUP
    tall = tl.minimum(tiles_n - head, GROUP)
    within = tl.program_id(0) % (GROUP * tiles_m)
    tile = head + within % tall
    m = within // tall * BM + tl.arange(0, BM)
    column = tile * BN + tl.arange(0, BN)
    length = tl.load(lengths + tile)
    listed = lists + tile.to(INDEX) * rows
    shift = shift_of(peaks + tile.to(INDEX) * parts, parts, PARTS) if X else 0
    up = power_of_two(shift) if X else 1.0
    sums = union_sums(
        at, at_low, x, listed, length, up, outputs, columns, rows, channels, pixels, out_width, height, width, x_n, x_c,
        x_h, x_w, m, column, KH, KW, SH, SW, PH, PW, DH, DW, INSIDE, SINGLE, X, W, BM, BN, BK, UPCAST, INDEX,
    )  # fmt: skip
    if W == 2:  # noqa: SIM102
        if has_nan(sums):
            plain = union_sums(
                at, at_low, x, listed, length, up, outputs, columns, rows, channels, pixels, out_width, height, width,
                x_n, x_c, x_h, x_w, m, column, KH, KW, SH, SW, PH, PW, DH, DW, INSIDE, SINGLE, 1, 1, BM, BN, BK, UPCAST,
                INDEX,
            )  # fmt: skip
            sums = tl.where(sums != sums, plain, sums)
    if X:
        sums = scaled_back(sums, shift, at_peaks, SHARES)
    if BIAS:
        sums += tl.load(bias + m, m < outputs, 0.0).to(tl.float32)[None, :]
    place = (column // pixels).to(INDEX) * y_n + (column % pixels).to(INDEX) * y_p
    known = (column < columns)[:, None] & (m < outputs)[None, :]
    tl.store(y + (place[:, None] + (m.to(INDEX) * y_m)[None, :]), rounded(sums, y.dtype.element_ty, UPCAST), known)


@triton.jit
@no_type_check
def masked_sums(
    at, at_low, dc, up, outputs, columns, rows, dc_m, dc_n, row, column,
    X: tl.constexpr, W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, UPCAST: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """A tile ``[BN, BK]`` of the product of listed rows."""
    sums = tl.zeros((BN, BK), tl.float32)
    for m0 in range(0, outputs, BM):
        m = m0 + tl.arange(0, BM)
        place = row.to(INDEX)[:, None] * outputs + m[None, :]
        known = (row < rows)[:, None] & (m < outputs)[None, :]
        a = tl.trans(tl.load(at + place, known, 0.0))
        a_low = a
        if W == 2:
            a_low = tl.trans(tl.load(at_low + place, known, 0.0))
        place = (m.to(INDEX) * dc_m)[:, None] + (column.to(INDEX) * dc_n)[None, :]
        d = tl.trans(tl.load(dc + place, (m < outputs)[:, None] & (column < columns)[None, :], 0.0))
        d_low = d
        if X:
            d, d_low = split_hi_lo(d.to(tl.float32) * up)
        sums = added(sums, d, d_low, a, a_low, X, W, UPCAST)
    return sums


@triton.jit
@no_type_check
def masked_kernel(
    at, at_low, at_peaks, x, lists, lengths, dc, dc_peaks, db, outputs, columns, rows, parts, x_k, x_n, dc_m, dc_n,
    X: tl.constexpr, W: tl.constexpr, PARTS: tl.constexpr, SHARES: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``db[row, column] = sum over m of at[row, m] * dc[m, column]`` where ``x[row, column]`` is not zero.

    Only rows that a tile of columns lists are computed; ``db (rows, columns)`` holds zeros beforehand.
    """
    blocks = tl.cdiv(rows, BK)
    tile = tl.program_id(0) // blocks
    k = tl.program_id(0) % blocks * BK + tl.arange(0, BK)
    length = tl.load(lengths + tile)
    if tl.program_id(0) % blocks * BK < length:
        column = tile * BN + tl.arange(0, BN)
        row = tl.load(lists + tile.to(INDEX) * rows + k, k < length, rows)
        shift = shift_of(dc_peaks, parts, PARTS) if X else 0
        up = power_of_two(shift) if X else 1.0
        sums = masked_sums(
            at, at_low, dc, up, outputs, columns, rows, dc_m, dc_n, row, column, X, W, BM, BN, BK, UPCAST, INDEX
        )
        if W == 2:  # noqa: SIM102
            if has_nan(sums):
                plain = masked_sums(
                    at, at_low, dc, up, outputs, columns, rows, dc_m, dc_n, row, column, 1, 1, BM, BN, BK, UPCAST, INDEX
                )
                sums = tl.where(sums != sums, plain, sums)
        if X:
            sums = scaled_back(sums, shift, at_peaks, SHARES)
        known = (column < columns)[:, None] & (row < rows)[None, :]
        value = tl.load(x + ((column.to(INDEX) * x_n)[:, None] + (row.to(INDEX) * x_k)[None, :]), known, 0.0)
        place = column[:, None] + row.to(INDEX)[None, :] * columns
        tl.store(db + place, rounded(sums, db.dtype.element_ty, UPCAST), known & (value.to(tl.float32) != 0))


def convert_cost(rows: int, columns: int, nonzeros: int, io_bytes: int, panels: int = 1) -> Cost:
    """One read of the operand, one word for each non-zero and one count for each column of a panel."""
    return Cost(0, rows * columns * io_bytes, 4 * nonzeros + 4 * panels * columns)


def nonzero_cost(
    outputs: int, columns: int, rows: int, nonzeros: int, weight_bytes: int, io_bytes: int, panels: int = 1
) -> Cost:
    """A multiply-add for each output of each non-zero; words, counts and weights read once, the result written."""
    read = 4 * nonzeros + 4 * panels * columns + outputs * rows * weight_bytes
    return Cost(2 * outputs * nonzeros, read, outputs * columns * io_bytes)


def union_cost(outputs: int, columns: int, rows: int, listed: int, width: int, io_bytes: int) -> Cost:
    """A multiply-add for each output in each column of each listed row; weights, listed rows and lists read once."""
    elements = outputs * rows + listed * width
    return Cost(2 * outputs * listed * width, elements * io_bytes + 4 * listed, outputs * columns * io_bytes)

"""A product that looks up which inputs it sums, as it loads them: implicit GEMM over a table of columns.

Common compile-time switches: ``UPCAST`` computes narrow types in float32 (the interpreter cannot multiply bf16);
``INDEX`` the type of addresses. Sums and biases are float32 whatever the operands are.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.runtime.triton_utils import rounded
from lamina.spec import Cost


@triton.jit
@no_type_check
def place_of(row, column, pixels, y_n, y_c, y_p, INDEX: tl.constexpr):
    """Where the output has its pixel ``row`` (over all images) of channel ``column``."""
    image = row // pixels
    pixel = row % pixels
    down = image.to(INDEX) * y_n + pixel.to(INDEX) * y_p
    return down[:, None] + (column.to(INDEX) * y_c)[None, :]


@triton.jit
@no_type_check
def product_kernel(
    x, w, bias, table, y, shares, rows, outputs, summed, first, pixels, out_width, height, width,
    x_n, x_c, x_h, x_w, w_row, y_n, y_c, y_p,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, INSIDE: tl.constexpr, FIRST: tl.constexpr, RUN: tl.constexpr,
    EVEN: tl.constexpr, BIAS: tl.constexpr, SPLITS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``y[row, column] = bias[column] + sum over k of w[column, k] * x[row's window, table[k]]``.

    ``table[k]`` is ``channel * KH * KW + tap``. Without a table the ``first`` channels are summed tap after tap, and no
    address waits for a load: ``FIRST`` is 0 with a table, -1 where ``BK`` divides their number, else that number. A row
    is a pixel of the output; its address and, in one bit for each tap, whether that tap is ``INSIDE`` the image are
    known before the loop. ``RUN`` neighbours of the sum are neighbours in memory. ``EVEN``, no share of the sum has a
    ragged end. With ``SPLITS`` shares of the sum go to ``shares [SPLITS, rows, outputs]``. Programs go down ``GROUP``
    tiles before they go on to the right, so that those that run together share what L2 holds.
    """
    tiles_m = tl.cdiv(rows, BM)
    tiles_n = tl.cdiv(outputs, BN)
    tile = tl.program_id(0) % (tiles_m * tiles_n)
    split = tl.program_id(0) // (tiles_m * tiles_n)
    above = tile // (GROUP * tiles_n) * GROUP
    tall = tl.minimum(tiles_m - above, GROUP)
    within = tile % (GROUP * tiles_n)
    row = (above + within % tall) * BM + tl.arange(0, BM)
    column = within // tall * BN + tl.arange(0, BN)

    image = row // pixels
    top = row % pixels // out_width * SH - PH
    left = row % pixels % out_width * SW - PW
    base = image.to(INDEX) * x_n + top.to(INDEX) * x_h + left.to(INDEX) * x_w
    if RUN > 1:
        base = tl.multiple_of(base, RUN)
    known_row = row < rows
    bits = tl.zeros((BM,), tl.int32)
    if not INSIDE:
        for bit in tl.static_range(KH * KW):
            h = top + bit // KW * DH
            v = left + bit % KW * DW
            inside = (h >= 0) & (h < height) & (v >= 0) & (v < width) & known_row
            bits |= inside.to(tl.int32) << bit

    share = tl.cdiv(tl.cdiv(summed, BK), SPLITS) * BK
    last = tl.minimum((split + 1) * share, summed)
    lane = tl.arange(0, BK)
    # Columns beyond the last one are never stored, so that they may read it again.
    w_base = tl.minimum(column, outputs - 1).to(INDEX)[None, :] * w_row + lane[:, None]
    sums = tl.zeros((BM, BN), tl.float32)
    if FIRST < 0:
        tap = split * share // first
        channel = split * share % first
        base = base[:, None] + (lane.to(INDEX) * x_c)[None, :]
        for k0 in range(split * share, last, BK):
            offset = channel.to(INDEX) * x_c + (tap // KW * DH).to(INDEX) * x_h + (tap % KW * DW).to(INDEX) * x_w
            if RUN > 1:
                offset = tl.multiple_of(offset, RUN)
            known = known_row
            if not INSIDE:
                known = ((bits >> tap) & 1) != 0
            a = tl.load(x + (base + offset), known[:, None], 0.0)
            b = tl.load(w + (w_base + k0))
            if UPCAST:
                a, b = a.to(tl.float32), b.to(tl.float32)
            sums = tl.dot(a, b, sums, input_precision=PRECISION, out_dtype=tl.float32)
            channel += BK
            tap = tl.where(channel == first, tap + 1, tap)
            channel = tl.where(channel == first, 0, channel)
    else:
        for k0 in range(split * share, last, BK):
            k = k0 + lane
            if FIRST > 0:
                tap = k // FIRST
                channel = k % FIRST
            else:
                if EVEN:
                    entry = tl.load(table + k)
                else:
                    entry = tl.load(table + k, k < last, 0)
                tap = entry % (KH * KW)
                channel = entry // (KH * KW)
            offset = channel.to(INDEX) * x_c + (tap // KW * DH).to(INDEX) * x_h + (tap % KW * DW).to(INDEX) * x_w
            if RUN > 1:
                offset = tl.max_contiguous(tl.multiple_of(offset, RUN), RUN)
            known = known_row[:, None]
            if not INSIDE:
                if RUN > 1:
                    tap = tl.max_constancy(tap, RUN)
                known = ((bits[:, None] >> tap[None, :]) & 1) != 0
            if EVEN:
                b = tl.load(w + (w_base + k0))
            else:
                known = known & (k < last)[None, :]
                b = tl.load(w + (w_base + k0), (k < last)[:, None], 0.0)
            a = tl.load(x + (base[:, None] + offset[None, :]), known, 0.0)
            if UPCAST:
                a, b = a.to(tl.float32), b.to(tl.float32)
            sums = tl.dot(a, b, sums, input_precision=PRECISION, out_dtype=tl.float32)

    known = known_row[:, None] & (column < outputs)[None, :]
    if SPLITS > 1:
        place = (split.to(INDEX) * rows + row.to(INDEX)[:, None]) * outputs + column[None, :]
        tl.store(shares + place, sums, known)
    else:
        if BIAS:
            sums += tl.load(bias + column, column < outputs, 0.0).to(tl.float32)[None, :]
        place = place_of(row, column, pixels, y_n, y_c, y_p, INDEX)
        tl.store(y + place, rounded(sums, y.dtype.element_ty, UPCAST), known)


@triton.jit
@no_type_check
def vector_kernel(
    x, w, bias, table, y, outputs, summed, x_row, w_row, y_row,
    TABLE: tl.constexpr, EVEN: tl.constexpr, BIAS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``y[row, column]`` of few rows, each by programs of its own: the weights' bytes alone take time.

    ``table`` names the inputs; without, they are the first. Rows lie along the grid's second axis.
    """
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.program_id(1).to(INDEX)
    w_rows = w + column.to(INDEX)[:, None] * w_row
    sums = tl.zeros((BN, BK), tl.float32)
    for k0 in range(0, summed, BK):
        k = k0 + tl.arange(0, BK)
        if TABLE:
            entry = tl.load(table + k, k < summed, 0)
        else:
            entry = k
        known = (column < outputs)[:, None]
        if not EVEN:
            known = known & (k < summed)[None, :]
        a = tl.load(x + row * x_row + entry, k < summed, 0.0).to(tl.float32)
        sums += tl.load(w_rows + k[None, :], known, 0.0).to(tl.float32) * a[None, :]
    y_value = tl.sum(sums, 1)
    if BIAS:
        y_value += tl.load(bias + column, column < outputs, 0.0).to(tl.float32)
    tl.store(y + row * y_row + column, rounded(y_value, y.dtype.element_ty, UPCAST), column < outputs)


@triton.jit
@no_type_check
def pack_kernel(
    x, places, y, rows, kept, pixels, width, x_n, x_c, x_h, x_w,
    BM: tl.constexpr, BC: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``y[row, c] = x[row's pixel, places[c]]``: channels that stay side by side, whatever the strides of ``x``."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    channel = tl.load(places + c, c < kept, 0)
    pixel = row % pixels
    base = (row // pixels).to(INDEX) * x_n + (pixel // width).to(INDEX) * x_h + (pixel % width).to(INDEX) * x_w
    known = (row < rows)[:, None] & (c < kept)[None, :]
    value = tl.load(x + (base[:, None] + (channel.to(INDEX) * x_c)[None, :]), known, 0.0)
    tl.store(y + (row.to(INDEX)[:, None] * kept + c[None, :]), value, known)


@triton.jit
@no_type_check
def sum_kernel(
    shares, bias, y, rows, outputs, pixels, y_n, y_c, y_p,
    BIAS: tl.constexpr, SPLITS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Add the shares of `product_kernel` in their order, and the bias."""
    tiles_n = tl.cdiv(outputs, BN)
    row = tl.program_id(0) // tiles_n * BM + tl.arange(0, BM)
    column = tl.program_id(0) % tiles_n * BN + tl.arange(0, BN)
    known = (row < rows)[:, None] & (column < outputs)[None, :]
    sums = tl.zeros((BM, BN), tl.float32)
    for split in tl.static_range(SPLITS):
        place = (row.to(INDEX)[:, None] + split * rows) * outputs + column[None, :]
        sums += tl.load(shares + place, known, 0.0)
    if BIAS:
        sums += tl.load(bias + column, column < outputs, 0.0).to(tl.float32)[None, :]
    place = place_of(row, column, pixels, y_n, y_c, y_p, INDEX)
    tl.store(y + place, rounded(sums, y.dtype.element_ty, UPCAST), known)


def product_cost(rows: int, outputs: int, summed: int, read: int, io_bytes: int, splits: int = 1) -> Cost:
    """The product's operations and its traffic: ``read`` numbers of the input, the weights, and the table.

    Shares of a split sum are written and read again.
    """
    shares = 4 * splits * rows * outputs if splits > 1 else 0
    return Cost(
        2 * rows * outputs * summed,
        (read + outputs * summed + outputs) * io_bytes + 4 * summed + shares,
        rows * outputs * io_bytes + shares,
    )

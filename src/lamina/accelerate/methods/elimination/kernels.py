"""Implicit GEMM whose K elements are looked up in an index table inside the loads.

Common constexprs: ``UPCAST`` computes 16-bit types in float32, since the interpreter cannot multiply bf16; ``INDEX`` is
the integer type of offsets. Accumulators and biases are float32.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.runtime.triton_utils import rounded
from lamina.spec import Cost


@triton.jit
@no_type_check
def output_offsets(row, column, pixels, y_n, y_c, y_p, INDEX: tl.constexpr):
    """Offsets of the output pixels ``row``, counted over all images, in channels ``column``."""
    image = row // pixels
    pixel = row % pixels
    down = image.to(INDEX) * y_n + pixel.to(INDEX) * y_p
    return down[:, None] + (column.to(INDEX) * y_c)[None, :]


@triton.jit
@no_type_check
def product_kernel(
    x, w, bias, table, y, partials, rows, outputs, summed, first, pixels, out_width, height, width,
    x_n, x_c, x_h, x_w, w_row, y_n, y_c, y_p,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, INSIDE: tl.constexpr, FIRST: tl.constexpr, RUN: tl.constexpr,
    EVEN_K: tl.constexpr, BIAS: tl.constexpr, SPLIT_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``y[row, column] = bias[column] + sum over k of w[column, k] * x[row's window, table[k]]``.

    ``table[k]`` is ``channel * KH * KW + tap``. Without a table the ``first`` channels are summed tap after tap, so
    that no address depends on a load: ``FIRST`` is 0 with a table, -1 where ``BLOCK_K`` divides ``first``, else
    ``first``. A row is a pixel of the output. Its address and a bit mask of the taps inside the image are computed
    before the loop; ``INSIDE``: all taps are. ``RUN`` consecutive elements of K are consecutive in memory. ``EVEN_K``:
    no split has a remainder. With ``SPLIT_K`` > 1, partial sums go to ``partials [SPLIT_K, rows, outputs]``. Programs
    are swizzled in groups of ``GROUP_M`` rows of tiles for locality in L2.
    """
    tiles_m = tl.cdiv(rows, BLOCK_M)
    tiles_n = tl.cdiv(outputs, BLOCK_N)
    tile = tl.program_id(0) % (tiles_m * tiles_n)
    split = tl.program_id(0) // (tiles_m * tiles_n)
    first_m = tile // (GROUP_M * tiles_n) * GROUP_M
    group_m = tl.minimum(tiles_m - first_m, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    row = (first_m + within % group_m) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = within // group_m * BLOCK_N + tl.arange(0, BLOCK_N)

    image = row // pixels
    top = row % pixels // out_width * SH - PH
    left = row % pixels % out_width * SW - PW
    base = image.to(INDEX) * x_n + top.to(INDEX) * x_h + left.to(INDEX) * x_w
    if RUN > 1:
        base = tl.multiple_of(base, RUN)
    row_mask = row < rows
    bits = tl.zeros((BLOCK_M,), tl.int32)
    if not INSIDE:
        for bit in tl.static_range(KH * KW):
            h = top + bit // KW * DH
            v = left + bit % KW * DW
            inside = (h >= 0) & (h < height) & (v >= 0) & (v < width) & row_mask
            bits |= inside.to(tl.int32) << bit

    k_per_split = tl.cdiv(tl.cdiv(summed, BLOCK_K), SPLIT_K) * BLOCK_K
    last = tl.minimum((split + 1) * k_per_split, summed)
    lane = tl.arange(0, BLOCK_K)
    # Columns beyond the last are not stored, and read the last one again.
    w_base = tl.minimum(column, outputs - 1).to(INDEX)[None, :] * w_row + lane[:, None]
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if FIRST < 0:
        tap = split * k_per_split // first
        channel = split * k_per_split % first
        base = base[:, None] + (lane.to(INDEX) * x_c)[None, :]
        for k0 in range(split * k_per_split, last, BLOCK_K):
            offset = channel.to(INDEX) * x_c + (tap // KW * DH).to(INDEX) * x_h + (tap % KW * DW).to(INDEX) * x_w
            if RUN > 1:
                offset = tl.multiple_of(offset, RUN)
            mask = row_mask
            if not INSIDE:
                mask = ((bits >> tap) & 1) != 0
            a = tl.load(x + (base + offset), mask[:, None], 0.0)
            b = tl.load(w + (w_base + k0))
            if UPCAST:
                a, b = a.to(tl.float32), b.to(tl.float32)
            sums = tl.dot(a, b, sums, input_precision=PRECISION, out_dtype=tl.float32)
            channel += BLOCK_K
            tap = tl.where(channel == first, tap + 1, tap)
            channel = tl.where(channel == first, 0, channel)
    else:
        for k0 in range(split * k_per_split, last, BLOCK_K):
            k = k0 + lane
            if FIRST > 0:
                tap = k // FIRST
                channel = k % FIRST
            else:
                if EVEN_K:
                    entry = tl.load(table + k)
                else:
                    entry = tl.load(table + k, k < last, 0)
                tap = entry % (KH * KW)
                channel = entry // (KH * KW)
            offset = channel.to(INDEX) * x_c + (tap // KW * DH).to(INDEX) * x_h + (tap % KW * DW).to(INDEX) * x_w
            if RUN > 1:
                offset = tl.max_contiguous(tl.multiple_of(offset, RUN), RUN)
            mask = row_mask[:, None]
            if not INSIDE:
                if RUN > 1:
                    tap = tl.max_constancy(tap, RUN)
                mask = ((bits[:, None] >> tap[None, :]) & 1) != 0
            if EVEN_K:
                b = tl.load(w + (w_base + k0))
            else:
                mask = mask & (k < last)[None, :]
                b = tl.load(w + (w_base + k0), (k < last)[:, None], 0.0)
            a = tl.load(x + (base[:, None] + offset[None, :]), mask, 0.0)
            if UPCAST:
                a, b = a.to(tl.float32), b.to(tl.float32)
            sums = tl.dot(a, b, sums, input_precision=PRECISION, out_dtype=tl.float32)

    mask = row_mask[:, None] & (column < outputs)[None, :]
    if SPLIT_K > 1:
        offsets = (split.to(INDEX) * rows + row.to(INDEX)[:, None]) * outputs + column[None, :]
        tl.store(partials + offsets, sums, mask)
    else:
        if BIAS:
            sums += tl.load(bias + column, column < outputs, 0.0).to(tl.float32)[None, :]
        offsets = output_offsets(row, column, pixels, y_n, y_c, y_p, INDEX)
        tl.store(y + offsets, rounded(sums, y.dtype.element_ty, UPCAST), mask)


@triton.jit
@no_type_check
def vector_kernel(
    x, w, bias, table, y, outputs, summed, x_row, w_row, y_row,
    TABLE: tl.constexpr, EVEN_K: tl.constexpr, BIAS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``y[row, column]`` of few rows, each by its own programs: memory-bound by the weights.

    ``table`` holds the inputs; without, they are a prefix. Rows are along the grid's second axis.
    """
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1).to(INDEX)
    w_rows = w + column.to(INDEX)[:, None] * w_row
    sums = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for k0 in range(0, summed, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        if TABLE:
            entry = tl.load(table + k, k < summed, 0)
        else:
            entry = k
        mask = (column < outputs)[:, None]
        if not EVEN_K:
            mask = mask & (k < summed)[None, :]
        a = tl.load(x + row * x_row + entry, k < summed, 0.0).to(tl.float32)
        sums += tl.load(w_rows + k[None, :], mask, 0.0).to(tl.float32) * a[None, :]
    y_value = tl.sum(sums, 1)
    if BIAS:
        y_value += tl.load(bias + column, column < outputs, 0.0).to(tl.float32)
    tl.store(y + row * y_row + column, rounded(y_value, y.dtype.element_ty, UPCAST), column < outputs)


@triton.jit
@no_type_check
def pack_kernel(
    x, index, y, rows, kept, pixels, width, x_n, x_c, x_h, x_w,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``y[row, c] = x[row's pixel, index[c]]``: remaining channels, contiguous, for any strides of ``x``."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    channel = tl.load(index + c, c < kept, 0)
    pixel = row % pixels
    base = (row // pixels).to(INDEX) * x_n + (pixel // width).to(INDEX) * x_h + (pixel % width).to(INDEX) * x_w
    mask = (row < rows)[:, None] & (c < kept)[None, :]
    value = tl.load(x + (base[:, None] + (channel.to(INDEX) * x_c)[None, :]), mask, 0.0)
    tl.store(y + (row.to(INDEX)[:, None] * kept + c[None, :]), value, mask)


@triton.jit
@no_type_check
def sum_kernel(
    partials, bias, y, rows, outputs, pixels, y_n, y_c, y_p,
    BIAS: tl.constexpr, SPLIT_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Reduce the split-K partial sums of `product_kernel` in order, and add the bias."""
    tiles_n = tl.cdiv(outputs, BLOCK_N)
    row = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (row < rows)[:, None] & (column < outputs)[None, :]
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for split in tl.static_range(SPLIT_K):
        offsets = (row.to(INDEX)[:, None] + split * rows) * outputs + column[None, :]
        sums += tl.load(partials + offsets, mask, 0.0)
    if BIAS:
        sums += tl.load(bias + column, column < outputs, 0.0).to(tl.float32)[None, :]
    offsets = output_offsets(row, column, pixels, y_n, y_c, y_p, INDEX)
    tl.store(y + offsets, rounded(sums, y.dtype.element_ty, UPCAST), mask)


def product_cost(rows: int, outputs: int, summed: int, read: int, io_bytes: int, split_k: int = 1) -> Cost:
    """FLOPs and bytes of the product, which reads ``read`` elements of the input, the weights and the table.

    Split-K partial sums are written and read again.
    """
    partial_bytes = 4 * split_k * rows * outputs if split_k > 1 else 0
    return Cost(
        2 * rows * outputs * summed,
        (read + outputs * summed + outputs) * io_bytes + 4 * summed + partial_bytes,
        rows * outputs * io_bytes + partial_bytes,
    )

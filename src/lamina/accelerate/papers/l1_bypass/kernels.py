"""Implicit GEMMs in fp32: a row is an output pixel of one image, a column is a weight of one filter.

``CACHE`` is the cache modifier of all loads of operands: ``".ca"`` to keep them in L1, ``".cg"`` to bypass it. Loads
are not pipelined: asynchronous copies to shared memory would go their own way past L1.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.spec import Cost

SIZES = (
    *("rows", "columns", "filters", "height", "width", "out_height", "out_width", "kernel_height", "kernel_width"),
    *("stride_height", "stride_width", "padding_height", "padding_width", "channels", "rows_per_split"),
)


@triton.jit
@no_type_check
def window(
    row, column, channels, height, width, out_height, out_width, kernel_height, kernel_width,
    stride_height, stride_width, padding_height, padding_width, INDEX: tl.constexpr,
):  # fmt: skip
    """Offsets in ``x (N, C, H, W)`` of the elements that meet in rows and columns, and whether they are inside."""
    image, pixel = row // (out_height * out_width), row % (out_height * out_width)
    channel, tap = column // (kernel_height * kernel_width), column % (kernel_height * kernel_width)
    h = pixel // out_width * stride_height - padding_height + tap // kernel_width
    w = pixel % out_width * stride_width - padding_width + tap % kernel_width
    inside = (h >= 0) & (h < height) & (w >= 0) & (w < width)
    return ((image * channels + channel).to(INDEX) * height + h) * width + w, inside


@triton.jit(do_not_specialize=SIZES)
@no_type_check
def forward_kernel(
    x, weight, y, rows, columns, filters, channels, height, width, out_height, out_width, kernel_height, kernel_width,
    stride_height, stride_width, padding_height, padding_width,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    CACHE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """A tile of ``BLOCK_M`` pixels by ``BLOCK_N`` filters of ``y (N, K, OH, OW)``."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    filter = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in range(0, columns, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        offsets, inside = window(
            row[:, None], k[None, :], channels, height, width, out_height, out_width, kernel_height, kernel_width,
            stride_height, stride_width, padding_height, padding_width, INDEX,
        )  # fmt: skip
        mask = inside & (row < rows)[:, None] & (k < columns)[None, :]
        a = tl.load(x + offsets, mask, 0.0, cache_modifier=CACHE)
        mask = (k < columns)[:, None] & (filter < filters)[None, :]
        b = tl.load(weight + filter[None, :] * columns + k[:, None], mask, 0.0, cache_modifier=CACHE)
        sums = tl.dot(a, b, sums, input_precision="ieee")
    image, pixel = row // (out_height * out_width), row % (out_height * out_width)
    target = (image[:, None].to(INDEX) * filters + filter[None, :]) * (out_height * out_width) + pixel[:, None]
    tl.store(y + target, sums, (row < rows)[:, None] & (filter < filters)[None, :])


@triton.jit(do_not_specialize=SIZES)
@no_type_check
def weight_gradient_kernel(
    x, gy, partials, rows, columns, filters, channels, height, width, out_height, out_width,
    kernel_height, kernel_width, stride_height, stride_width, padding_height, padding_width, rows_per_split,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    CACHE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """A tile of ``BLOCK_M`` filters by ``BLOCK_N`` weights of ``partials (splits, K, C R S)``, over a split's rows."""
    filter = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    first = split * rows_per_split
    last = tl.minimum(first + rows_per_split, rows)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for r0 in range(first, last, BLOCK_K):
        row = r0 + tl.arange(0, BLOCK_K)
        image, pixel = row // (out_height * out_width), row % (out_height * out_width)
        source = (image[None, :].to(INDEX) * filters + filter[:, None]) * (out_height * out_width) + pixel[None, :]
        mask = (filter < filters)[:, None] & (row < last)[None, :]
        a = tl.load(gy + source, mask, 0.0, cache_modifier=CACHE)
        offsets, inside = window(
            row[:, None], column[None, :], channels, height, width, out_height, out_width, kernel_height, kernel_width,
            stride_height, stride_width, padding_height, padding_width, INDEX,
        )  # fmt: skip
        mask = inside & (row < last)[:, None] & (column < columns)[None, :]
        b = tl.load(x + offsets, mask, 0.0, cache_modifier=CACHE)
        sums = tl.dot(a, b, sums, input_precision="ieee")
    target = (split.to(INDEX) * filters + filter[:, None]) * columns + column[None, :]
    tl.store(partials + target, sums, (filter < filters)[:, None] & (column < columns)[None, :])


def convolution_cost(rows: int, columns: int, filters: int, inputs: int, splits: int = 1) -> Cost:
    """FLOPs, and bytes of ``inputs`` elements of x, the weights and the outputs, each moved once."""
    flops = 2 * rows * columns * filters
    return Cost(flops, 4 * (inputs + filters * columns), 4 * splits * rows * filters)

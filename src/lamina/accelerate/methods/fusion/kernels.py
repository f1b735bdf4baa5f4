"""GEMMs with a fused epilogue, and single kernels for what surrounds the library's GEMMs and convolutions.

Common constexprs: ``ACTIVATION`` its name; ``CACHE`` the cache modifier of loads, ``".cg"`` to bypass L1; ``UPCAST``
computes 16-bit types in float32, since the interpreter cannot multiply bf16; ``INDEX`` is the integer type of offsets.
Accumulators, biases and activations are float32.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.runtime.triton_utils import rounded
from lamina.spec import Cost


@triton.jit
@no_type_check
def tanh(x):
    """Its series near 0, where the ratio of exponentials loses precision; odd, so that large ``x`` is safe."""
    square = x * x
    near = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0))))
    small = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - small) / (1.0 + small)
    return tl.where(tl.abs(x) < 0.2, near, tl.where(x < 0, -far, far))


@triton.jit
@no_type_check
def sigmoid(x):
    """An exponential that overflows gives 0."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
@no_type_check
def gelu_angle(x):
    """The tanh-approximated GELU is ``x * sigmoid(gelu_angle(x))``."""
    return 1.5957691216057308 * (x + 0.044715 * x * x * x)


@triton.jit
@no_type_check
def activated(x, ACTIVATION: tl.constexpr):
    """The activation; NaN is propagated."""
    if ACTIVATION == "relu":
        return tl.where(x <= 0, 0.0, x)
    elif ACTIVATION == "tanh":
        return tanh(x)
    elif ACTIVATION == "sigmoid":
        return sigmoid(x)
    elif ACTIVATION == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    else:
        return x * sigmoid(gelu_angle(x))


@triton.jit
@no_type_check
def slope(saved, ACTIVATION: tl.constexpr):
    """The activation's derivative from its output, or from its input for GELU."""
    if ACTIVATION == "relu":
        return tl.where(saved <= 0, 0.0, 1.0)
    elif ACTIVATION == "tanh":
        return 1.0 - saved * saved
    elif ACTIVATION == "sigmoid":
        return saved * (1.0 - saved)
    elif ACTIVATION == "gelu":
        cdf = 0.5 * (1.0 + tl.erf(saved * 0.7071067811865476))
        return cdf + saved * 0.3989422804014327 * tl.exp(-0.5 * saved * saved)
    else:
        cdf = sigmoid(gelu_angle(saved))
        angle_slope = 1.5957691216057308 * (1.0 + 3.0 * 0.044715 * saved * saved)
        # The second sigmoid is 1 - cdf without cancellation.
        return cdf + saved * cdf * sigmoid(-gelu_angle(saved)) * angle_slope


@triton.jit
@no_type_check
def finish(
    sums, bias, y, z, row, column, rows, columns,
    ACTIVATION: tl.constexpr, BIAS: tl.constexpr, KEEP: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """The epilogue of a tile: ``z = sums + bias``, stored with ``KEEP``, and ``y = activation(z)``."""
    if BIAS:
        sums += tl.load(bias + column, column < columns, 0.0).to(tl.float32)[None, :]
    offsets = row.to(INDEX)[:, None] * columns + column[None, :]
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    if KEEP:
        tl.store(z + offsets, rounded(sums, z.dtype.element_ty, UPCAST), mask)
    tl.store(y + offsets, rounded(activated(sums, ACTIVATION), y.dtype.element_ty, UPCAST), mask)


@triton.jit
@no_type_check
def linear_kernel(
    x, w, bias, y, z, partials, rows, columns, summed, x_row, x_column, w_row, w_column,
    ACTIVATION: tl.constexpr, BIAS: tl.constexpr, KEEP: tl.constexpr, SPLIT_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr, CACHE: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``y = activation(x w^T + bias)``; with ``SPLIT_K`` > 1, ``partials [SPLIT_K, rows, columns]`` of the product.

    ``x (rows, summed)`` and ``w (columns, summed)`` of any strides. Programs are swizzled in groups of ``GROUP_M`` rows
    of tiles for locality in L2.
    """
    tiles_m = tl.cdiv(rows, BLOCK_M)
    tiles_n = tl.cdiv(columns, BLOCK_N)
    tile = tl.program_id(0) % (tiles_m * tiles_n)
    split = tl.program_id(0) // (tiles_m * tiles_n)
    first_m = tile // (GROUP_M * tiles_n) * GROUP_M
    group_m = tl.minimum(tiles_m - first_m, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    row = (first_m + within % group_m) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = within // group_m * BLOCK_N + tl.arange(0, BLOCK_N)
    k_per_split = tl.cdiv(tl.cdiv(summed, BLOCK_K), SPLIT_K) * BLOCK_K
    last = tl.minimum((split + 1) * k_per_split, summed)
    x_rows = x + row.to(INDEX)[:, None] * x_row
    w_rows = w + column.to(INDEX)[None, :] * w_row
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in range(split * k_per_split, last, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        mask = (row < rows)[:, None] & (k < last)[None, :]
        a = tl.load(x_rows + k.to(INDEX)[None, :] * x_column, mask, 0.0, cache_modifier=CACHE)
        mask = (k < last)[:, None] & (column < columns)[None, :]
        b = tl.load(w_rows + k.to(INDEX)[:, None] * w_column, mask, 0.0, cache_modifier=CACHE)
        if UPCAST:
            a, b = a.to(tl.float32), b.to(tl.float32)
        sums = tl.dot(a, b, sums, input_precision=PRECISION, out_dtype=tl.float32)
    if SPLIT_K > 1:
        offsets = (split.to(INDEX) * rows + row.to(INDEX)[:, None]) * columns + column[None, :]
        tl.store(partials + offsets, sums, (row < rows)[:, None] & (column < columns)[None, :])
    else:
        finish(sums, bias, y, z, row, column, rows, columns, ACTIVATION, BIAS, KEEP, UPCAST, INDEX)


@triton.jit
@no_type_check
def finish_kernel(
    partials, bias, y, z, rows, columns,
    ACTIVATION: tl.constexpr, BIAS: tl.constexpr, KEEP: tl.constexpr, SPLIT_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Reduce the split-K partial sums of `linear_kernel` in order, then apply its epilogue."""
    tiles_n = tl.cdiv(columns, BLOCK_N)
    row = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for split in tl.static_range(SPLIT_K):
        offsets = (row.to(INDEX)[:, None] + split * rows) * columns + column[None, :]
        sums += tl.load(partials + offsets, mask, 0.0)
    finish(sums, bias, y, z, row, column, rows, columns, ACTIVATION, BIAS, KEEP, UPCAST, INDEX)


def linear_cost(rows: int, columns: int, summed: int, io_bytes: int, split_k: int = 1, keep: bool = False) -> Cost:
    """FLOPs and bytes: the product and one per activation; split-K partial sums are written and read again."""
    partial_bytes = 4 * split_k * rows * columns if split_k > 1 else 0
    return Cost(
        2 * rows * columns * summed + rows * columns,
        (rows * summed + columns * summed + columns) * io_bytes + partial_bytes,
        rows * columns * io_bytes * (2 if keep else 1) + partial_bytes,
    )


@triton.jit
@no_type_check
def activation_backward_kernel(
    dy, saved, dz, sums, rows, columns, dy_row, dy_column,
    ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CACHE: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``dz = dy * slope(saved)``, and its column sums, the bias gradient, in ``sums [row tiles, columns]``."""
    tiles_n = tl.cdiv(columns, BLOCK_N)
    i = tl.program_id(0) // tiles_n
    row = i * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    offsets = row.to(INDEX)[:, None] * columns + column[None, :]
    source = dy + row.to(INDEX)[:, None] * dy_row + column.to(INDEX)[None, :] * dy_column
    gradient = tl.load(source, mask, 0.0, cache_modifier=CACHE).to(tl.float32)
    gradient *= slope(tl.load(saved + offsets, mask, 0.0, cache_modifier=CACHE).to(tl.float32), ACTIVATION)
    gradient = tl.where(mask, gradient, 0.0)
    tl.store(dz + offsets, rounded(gradient, dz.dtype.element_ty, UPCAST), mask)
    tl.store(sums + i * columns + column, tl.sum(gradient, 0), column < columns)


def activation_backward_cost(rows: int, columns: int, io_bytes: int) -> Cost:
    """A multiplication and an addition per element; partial sums are not counted."""
    return Cost(2 * rows * columns, 2 * rows * columns * io_bytes, rows * columns * io_bytes)


@triton.jit
@no_type_check
def spread(first_pixel, first_channel, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, LAST: tl.constexpr):
    """Pixels and channels of a tile, flattened in memory order; ``LAST``: channels are contiguous."""
    e = tl.arange(0, BLOCK_P * BLOCK_C)
    if LAST:
        return first_pixel + e // BLOCK_C, first_channel + e % BLOCK_C
    else:
        return first_pixel + e % BLOCK_P, first_channel + e // BLOCK_P


@triton.jit
@no_type_check
def pool_kernel(
    x, bias, y, winners, channels, tiles_p, x_n, x_c, x_h, x_w, y_n, y_c, y_h, y_w,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, LAST: tl.constexpr,
    CACHE: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``y = max_pool(relu(x + bias))``, and the tap of each window's maximum, -1 where that is not positive.

    Elements are rounded as if each operator stored its output, and the first of equal ones is selected.
    """
    image = (tl.program_id(0) // tiles_p).to(INDEX)
    p, c = spread(tl.program_id(0) % tiles_p * BLOCK_P, tl.program_id(1) * BLOCK_C, BLOCK_P, BLOCK_C, LAST)
    mask = (p < OH * OW) & (c < channels)
    # One row of pixels needs no division, which would hide from the compiler that they are contiguous.
    oh = p * 0 if OH == 1 else p // OW
    ow = p if OH == 1 else p % OW
    source = x + image * x_n + c.to(INDEX) * x_c
    target = image * y_n + c.to(INDEX) * y_c + oh.to(INDEX) * y_h + ow.to(INDEX) * y_w
    best = tl.full((BLOCK_P * BLOCK_C,), float("-inf"), tl.float32)
    winner = tl.full((BLOCK_P * BLOCK_C,), -1, tl.int32)
    for tap in tl.static_range(KH * KW):
        h = oh * SH - PH + tap // KW
        w = ow * SW - PW + tap % KW
        inside = mask & (h >= 0) & (h < H) & (w >= 0) & (w < W) if KH * KW > 1 else mask
        value = tl.load(source + h.to(INDEX) * x_h + w.to(INDEX) * x_w, inside, 0.0, cache_modifier=CACHE)
        value = value.to(tl.float32)
        if BIAS:
            value += tl.load(bias + c, mask, 0.0).to(tl.float32)
        value = rounded(value, y.dtype.element_ty, UPCAST).to(tl.float32)
        better = inside & ((value > best) | (value != value))
        best = tl.where(better, value, best)
        winner = tl.where(better, tap, winner)
    tl.store(y + target, rounded(activated(best, "relu"), y.dtype.element_ty, UPCAST), mask)
    tl.store(winners + target, tl.where(best <= 0, -1, winner).to(tl.int8), mask)


@triton.jit
@no_type_check
def pool_backward_kernel(
    dy, winners, dx, sums, channels, tiles_p, y_n, y_c, y_h, y_w, x_n, x_c, x_h, x_w,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, LAST: tl.constexpr,
    CACHE: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """The transpose of `pool_kernel`: each pixel gathers from the windows it won, so nothing is added atomically.

    ``dy`` lies as ``winners`` do.
    ``sums [images * pixel tiles, channels]`` are sums of ``dx``, the bias gradient in partials.
    """
    image = (tl.program_id(0) // tiles_p).to(INDEX)
    p, c = spread(tl.program_id(0) % tiles_p * BLOCK_P, tl.program_id(1) * BLOCK_C, BLOCK_P, BLOCK_C, LAST)
    mask = (p < H * W) & (c < channels)
    h = p * 0 if H == 1 else p // W
    w = p if H == 1 else p % W
    source = image * y_n + c.to(INDEX) * y_c
    gradient = tl.zeros((BLOCK_P * BLOCK_C,), tl.float32)
    for up in tl.static_range((KH + SH - 1) // SH):
        for left in tl.static_range((KW + SW - 1) // SW):
            oh = (h + PH) // SH - up
            ow = (w + PW) // SW - left
            row = h + PH - oh * SH
            column = w + PW - ow * SW
            inside = mask
            if KH * KW * SH * SW > 1:
                inside &= (oh >= 0) & (oh < OH) & (ow >= 0) & (ow < OW) & (row < KH) & (column < KW)
            there = source + oh.to(INDEX) * y_h + ow.to(INDEX) * y_w
            winner = tl.load(winners + there, inside, -1, cache_modifier=CACHE)
            sent = tl.load(dy + there, inside, 0.0, cache_modifier=CACHE)
            gradient += tl.where(winner.to(tl.int32) == row * KW + column, sent.to(tl.float32), 0.0)
    target = image * x_n + c.to(INDEX) * x_c + h.to(INDEX) * x_h + w.to(INDEX) * x_w
    tl.store(dx + target, rounded(gradient, dx.dtype.element_ty, UPCAST), mask)
    if LAST:
        total = tl.sum(tl.reshape(gradient, (BLOCK_P, BLOCK_C)), 0)
    else:
        total = tl.sum(tl.reshape(gradient, (BLOCK_C, BLOCK_P)), 1)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    tl.store(sums + tl.program_id(0).to(INDEX) * channels + channel, total, channel < channels)


def pool_cost(pixels_in: int, pixels_out: int, channels: int, io_bytes: int) -> Cost:
    """Forward, over all images: an addition and a comparison per pixel; a byte per window for the selected tap."""
    written = pixels_out * channels
    return Cost(2 * pixels_in * channels, (pixels_in * channels + channels) * io_bytes, written * (io_bytes + 1))


def pool_backward_cost(pixels_in: int, pixels_out: int, channels: int, io_bytes: int) -> Cost:
    """An addition per pixel for the bias gradient; pixels that were not selected are written as zeros."""
    return Cost(pixels_in * channels, pixels_out * channels * (io_bytes + 1), pixels_in * channels * io_bytes)

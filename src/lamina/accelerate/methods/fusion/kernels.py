"""Products with their epilogue in registers, and single passes for what surrounds a product that is the library's.

Common compile-time switches: ``ACTIVATION`` its name; ``CACHE`` the cache modifier of loads, ``".cg"`` to go past L1;
``UPCAST`` computes narrow types in float32 (the interpreter cannot multiply bf16); ``INDEX`` the type of addresses.
Sums, biases and activations are float32 whatever the operands are.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.runtime.triton_utils import rounded
from lamina.spec import Cost


@triton.jit
@no_type_check
def tanh(x):
    """By its series near 0, where the quotient of exponentials loses digits; odd, so that large ``x`` is safe."""
    square = x * x
    near = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0))))
    small = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - small) / (1.0 + small)
    return tl.where(tl.abs(x) < 0.2, near, tl.where(x < 0, -far, far))


@triton.jit
@no_type_check
def sigmoid(x):
    """Exponentials that overflow end in 0."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
@no_type_check
def gelu_angle(x):
    """The approximate GELU is ``x * sigmoid`` of this."""
    return 1.5957691216057308 * (x + 0.044715 * x * x * x)


@triton.jit
@no_type_check
def activated(x, ACTIVATION: tl.constexpr):
    """The activation; NaN stays NaN."""
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
    """The activation's derivative, of its result where that tells it, else (GELU) of its argument."""
    if ACTIVATION == "relu":
        return tl.where(saved <= 0, 0.0, 1.0)
    elif ACTIVATION == "tanh":
        return 1.0 - saved * saved
    elif ACTIVATION == "sigmoid":
        return saved * (1.0 - saved)
    elif ACTIVATION == "gelu":
        share = 0.5 * (1.0 + tl.erf(saved * 0.7071067811865476))
        return share + saved * 0.3989422804014327 * tl.exp(-0.5 * saved * saved)
    else:
        share = sigmoid(gelu_angle(saved))
        angle_slope = 1.5957691216057308 * (1.0 + 3.0 * 0.044715 * saved * saved)
        # The second sigmoid is 1 - share without its cancellation.
        return share + saved * share * sigmoid(-gelu_angle(saved)) * angle_slope


@triton.jit
@no_type_check
def finish(
    sums, bias, y, z, row, column, rows, columns,
    ACTIVATION: tl.constexpr, BIAS: tl.constexpr, KEEP: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """The epilogue of a tile of sums: ``z = sums + bias`` where it is kept, ``y = activation(z)``."""
    if BIAS:
        sums += tl.load(bias + column, column < columns, 0.0).to(tl.float32)[None, :]
    place = row.to(INDEX)[:, None] * columns + column[None, :]
    known = (row < rows)[:, None] & (column < columns)[None, :]
    if KEEP:
        tl.store(z + place, rounded(sums, z.dtype.element_ty, UPCAST), known)
    tl.store(y + place, rounded(activated(sums, ACTIVATION), y.dtype.element_ty, UPCAST), known)


@triton.jit
@no_type_check
def linear_kernel(
    x, w, bias, y, z, shares, rows, columns, summed, x_row, x_column, w_row, w_column,
    ACTIVATION: tl.constexpr, BIAS: tl.constexpr, KEEP: tl.constexpr, SPLITS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    PRECISION: tl.constexpr, CACHE: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``y = activation(x w^T + bias)``; with ``SPLITS`` shares of the sum in ``shares [SPLITS, rows, columns]``.

    ``x (rows, summed)`` and ``w (columns, summed)`` of any strides. Programs go down ``GROUP`` tiles before they go
    on to the right, so that those that run together share what L2 holds.
    """
    tiles_m = tl.cdiv(rows, BM)
    tiles_n = tl.cdiv(columns, BN)
    tile = tl.program_id(0) % (tiles_m * tiles_n)
    split = tl.program_id(0) // (tiles_m * tiles_n)
    first = tile // (GROUP * tiles_n) * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    within = tile % (GROUP * tiles_n)
    row = (first + within % height) * BM + tl.arange(0, BM)
    column = within // height * BN + tl.arange(0, BN)
    share = tl.cdiv(tl.cdiv(summed, BK), SPLITS) * BK
    last = tl.minimum((split + 1) * share, summed)
    x_rows = x + row.to(INDEX)[:, None] * x_row
    w_rows = w + column.to(INDEX)[None, :] * w_row
    sums = tl.zeros((BM, BN), tl.float32)
    for k0 in range(split * share, last, BK):
        k = k0 + tl.arange(0, BK)
        known = (row < rows)[:, None] & (k < last)[None, :]
        a = tl.load(x_rows + k.to(INDEX)[None, :] * x_column, known, 0.0, cache_modifier=CACHE)
        known = (k < last)[:, None] & (column < columns)[None, :]
        b = tl.load(w_rows + k.to(INDEX)[:, None] * w_column, known, 0.0, cache_modifier=CACHE)
        if UPCAST:
            a, b = a.to(tl.float32), b.to(tl.float32)
        sums = tl.dot(a, b, sums, input_precision=PRECISION, out_dtype=tl.float32)
    if SPLITS > 1:
        place = (split.to(INDEX) * rows + row.to(INDEX)[:, None]) * columns + column[None, :]
        tl.store(shares + place, sums, (row < rows)[:, None] & (column < columns)[None, :])
    else:
        finish(sums, bias, y, z, row, column, rows, columns, ACTIVATION, BIAS, KEEP, UPCAST, INDEX)


@triton.jit
@no_type_check
def finish_kernel(
    shares, bias, y, z, rows, columns,
    ACTIVATION: tl.constexpr, BIAS: tl.constexpr, KEEP: tl.constexpr, SPLITS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Add the shares of `linear_kernel` in their order, then its epilogue."""
    tiles_n = tl.cdiv(columns, BN)
    row = tl.program_id(0) // tiles_n * BM + tl.arange(0, BM)
    column = tl.program_id(0) % tiles_n * BN + tl.arange(0, BN)
    known = (row < rows)[:, None] & (column < columns)[None, :]
    sums = tl.zeros((BM, BN), tl.float32)
    for split in tl.static_range(SPLITS):
        place = (row.to(INDEX)[:, None] + split * rows) * columns + column[None, :]
        sums += tl.load(shares + place, known, 0.0)
    finish(sums, bias, y, z, row, column, rows, columns, ACTIVATION, BIAS, KEEP, UPCAST, INDEX)


def linear_cost(rows: int, columns: int, summed: int, io_bytes: int, splits: int = 1, keep: bool = False) -> Cost:
    """The product's operations and one for each activation; shares of a split sum are written and read again."""
    shares = 4 * splits * rows * columns if splits > 1 else 0
    return Cost(
        2 * rows * columns * summed + rows * columns,
        (rows * summed + columns * summed + columns) * io_bytes + shares,
        rows * columns * io_bytes * (2 if keep else 1) + shares,
    )


@triton.jit
@no_type_check
def activation_backward_kernel(
    dy, saved, dz, sums, rows, columns, dy_row, dy_column,
    ACTIVATION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CACHE: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``dz = dy * slope(saved)``, and its column sums, the bias gradient, in ``sums [row tiles, columns]``."""
    tiles_n = tl.cdiv(columns, BN)
    i = tl.program_id(0) // tiles_n
    row = i * BM + tl.arange(0, BM)
    column = tl.program_id(0) % tiles_n * BN + tl.arange(0, BN)
    known = (row < rows)[:, None] & (column < columns)[None, :]
    place = row.to(INDEX)[:, None] * columns + column[None, :]
    source = dy + row.to(INDEX)[:, None] * dy_row + column.to(INDEX)[None, :] * dy_column
    gradient = tl.load(source, known, 0.0, cache_modifier=CACHE).to(tl.float32)
    gradient *= slope(tl.load(saved + place, known, 0.0, cache_modifier=CACHE).to(tl.float32), ACTIVATION)
    gradient = tl.where(known, gradient, 0.0)
    tl.store(dz + place, rounded(gradient, dz.dtype.element_ty, UPCAST), known)
    tl.store(sums + i * columns + column, tl.sum(gradient, 0), column < columns)


def activation_backward_cost(rows: int, columns: int, io_bytes: int) -> Cost:
    """One product and one addition an element; sums of a tile of rows are not counted."""
    return Cost(2 * rows * columns, 2 * rows * columns * io_bytes, rows * columns * io_bytes)


@triton.jit
@no_type_check
def spread(first_pixel, first_channel, BP: tl.constexpr, BC: tl.constexpr, LAST: tl.constexpr):
    """Pixels and channels of a tile, as one row in the order in which memory lies; ``LAST``, channels are adjacent."""
    e = tl.arange(0, BP * BC)
    if LAST:
        return first_pixel + e // BC, first_channel + e % BC
    else:
        return first_pixel + e % BP, first_channel + e // BP


@triton.jit
@no_type_check
def pool_kernel(
    x, bias, y, winners, channels, tiles_p, x_n, x_c, x_h, x_w, y_n, y_c, y_h, y_w,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, BIAS: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr, LAST: tl.constexpr,
    CACHE: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``y = max_pool(relu(x + bias))`` in one pass, and which pixel of each window won: -1 where it is not positive.

    Candidates are rounded as they would be stored, and the first of equals wins, as if the steps were apart.
    """
    image = (tl.program_id(0) // tiles_p).to(INDEX)
    p, c = spread(tl.program_id(0) % tiles_p * BP, tl.program_id(1) * BC, BP, BC, LAST)
    known = (p < OH * OW) & (c < channels)
    # One row of pixels needs no division, which would hide from the compiler that they are adjacent.
    oh = p * 0 if OH == 1 else p // OW
    ow = p if OH == 1 else p % OW
    source = x + image * x_n + c.to(INDEX) * x_c
    target = image * y_n + c.to(INDEX) * y_c + oh.to(INDEX) * y_h + ow.to(INDEX) * y_w
    best = tl.full((BP * BC,), float("-inf"), tl.float32)
    winner = tl.full((BP * BC,), -1, tl.int32)
    for tap in tl.static_range(KH * KW):
        h = oh * SH - PH + tap // KW
        w = ow * SW - PW + tap % KW
        inside = known & (h >= 0) & (h < H) & (w >= 0) & (w < W) if KH * KW > 1 else known
        value = tl.load(source + h.to(INDEX) * x_h + w.to(INDEX) * x_w, inside, 0.0, cache_modifier=CACHE)
        value = value.to(tl.float32)
        if BIAS:
            value += tl.load(bias + c, known, 0.0).to(tl.float32)
        value = rounded(value, y.dtype.element_ty, UPCAST).to(tl.float32)
        better = inside & ((value > best) | (value != value))
        best = tl.where(better, value, best)
        winner = tl.where(better, tap, winner)
    tl.store(y + target, rounded(activated(best, "relu"), y.dtype.element_ty, UPCAST), known)
    tl.store(winners + target, tl.where(best <= 0, -1, winner).to(tl.int8), known)


@triton.jit
@no_type_check
def pool_backward_kernel(
    dy, winners, dx, sums, channels, tiles_p, y_n, y_c, y_h, y_w, x_n, x_c, x_h, x_w,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr, LAST: tl.constexpr,
    CACHE: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """The transpose of `pool_kernel`: each pixel gathers from the windows it won, so nothing is added atomically.

    ``dy`` lies as ``winners`` do.
    ``sums [images * pixel tiles, channels]`` are sums of ``dx``, the bias gradient in shares.
    """
    image = (tl.program_id(0) // tiles_p).to(INDEX)
    p, c = spread(tl.program_id(0) % tiles_p * BP, tl.program_id(1) * BC, BP, BC, LAST)
    known = (p < H * W) & (c < channels)
    h = p * 0 if H == 1 else p // W
    w = p if H == 1 else p % W
    source = image * y_n + c.to(INDEX) * y_c
    gradient = tl.zeros((BP * BC,), tl.float32)
    for up in tl.static_range((KH + SH - 1) // SH):
        for left in tl.static_range((KW + SW - 1) // SW):
            oh = (h + PH) // SH - up
            ow = (w + PW) // SW - left
            row = h + PH - oh * SH
            column = w + PW - ow * SW
            inside = known
            if KH * KW * SH * SW > 1:
                inside &= (oh >= 0) & (oh < OH) & (ow >= 0) & (ow < OW) & (row < KH) & (column < KW)
            there = source + oh.to(INDEX) * y_h + ow.to(INDEX) * y_w
            winner = tl.load(winners + there, inside, -1, cache_modifier=CACHE)
            sent = tl.load(dy + there, inside, 0.0, cache_modifier=CACHE)
            gradient += tl.where(winner.to(tl.int32) == row * KW + column, sent.to(tl.float32), 0.0)
    target = image * x_n + c.to(INDEX) * x_c + h.to(INDEX) * x_h + w.to(INDEX) * x_w
    tl.store(dx + target, rounded(gradient, dx.dtype.element_ty, UPCAST), known)
    if LAST:
        total = tl.sum(tl.reshape(gradient, (BP, BC)), 0)
    else:
        total = tl.sum(tl.reshape(gradient, (BC, BP)), 1)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    tl.store(sums + tl.program_id(0).to(INDEX) * channels + channel, total, channel < channels)


def pool_cost(pixels_in: int, pixels_out: int, channels: int, io_bytes: int) -> Cost:
    """Forward, over all images: an addition and a comparison a pixel; a byte names each window's winner."""
    written = pixels_out * channels
    return Cost(2 * pixels_in * channels, (pixels_in * channels + channels) * io_bytes, written * (io_bytes + 1))


def pool_backward_cost(pixels_in: int, pixels_out: int, channels: int, io_bytes: int) -> Cost:
    """An addition a pixel for the bias gradient; what was not sent on is written as zero."""
    return Cost(pixels_in * channels, pixels_out * channels * (io_bytes + 1), pixels_in * channels * io_bytes)

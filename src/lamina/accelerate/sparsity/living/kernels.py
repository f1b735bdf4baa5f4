"""Kernels of convolutions over the channels that live in each image: those with a non-zero somewhere in it.

An image's living channels are brought side by side, pixel after pixel, so that tensor cores read whole rows of them;
what is multiplied by them is found through the image's list, or brought side by side too, which TF32 asks for.

Common compile-time switches are those of `kernels`. ``x_p`` is from a pixel to the next, which are evenly apart.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.kernels import rounded


@triton.jit
@no_type_check
def live_kernel(
    x, live, channels, pixels, x_n, x_c, x_p, BC: tl.constexpr, BP: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Which channels of each image have a non-zero: int8 ``live [images, channels]``."""
    blocks = tl.cdiv(channels, BC)
    image = (tl.program_id(0) // blocks).to(INDEX)
    channel = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    found = tl.zeros((BC,), tl.int32)
    for p0 in range(0, pixels, BP):
        pixel = p0 + tl.arange(0, BP)
        place = (channel.to(INDEX) * x_c)[:, None] + (pixel.to(INDEX) * x_p)[None, :]
        known = (channel < channels)[:, None] & (pixel < pixels)[None, :]
        value = tl.load(x + image * x_n + place, known, 0.0).to(tl.float32)
        found |= tl.max((value != 0).to(tl.int32), axis=1)
    tl.store(live + image * channels + channel, found.to(tl.int8), channel < channels)


@triton.jit
@no_type_check
def gather_kernel(
    x, live, lists, lengths, near, channels, pixels, room, x_n, x_c, x_p,
    ALL: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Living channels side by side, ``near [images, pixels, room]``, in their order, then zeros to whole ``BK``.

    Each block of pixels has a list of its own to read, ``lists [images, blocks, room]``; an image's first is complete,
    and names some channel where there is none.
    """
    blocks = tl.cdiv(pixels, BP)
    image = (tl.program_id(0) // blocks).to(INDEX)
    block = tl.program_id(0) % blocks
    listed = lists + (image * blocks + block) * room
    length = 0
    for c0 in range(0, channels, ALL):
        channel = c0 + tl.arange(0, ALL)
        lives = tl.load(live + image * channels + channel, channel < channels, 0).to(tl.int32)
        tl.store(listed + (length + tl.cumsum(lives, axis=0) - lives), channel, lives != 0)
        length += tl.sum(lives, axis=0)
    tl.debug_barrier()
    pixel = block * BP + tl.arange(0, BP)
    to = (image * pixels + pixel).to(INDEX) * room
    for k0 in range(0, length, BK):
        k = k0 + tl.arange(0, BK)
        channel = tl.load(listed + k, k < length, 0)
        known = (pixel < pixels)[:, None] & (k < length)[None, :]
        place = (pixel.to(INDEX) * x_p)[:, None] + (channel.to(INDEX) * x_c)[None, :]
        value = tl.load(x + image * x_n + place, known, 0.0)
        tl.store(near + (to[:, None] + k[None, :]), value, (pixel < pixels)[:, None])
        if block == 0:
            tl.store(listed + k, channel)
    if block == 0:
        tl.store(lengths + image, length)


@triton.jit
@no_type_check
def gather_weights_kernel(
    at, lists, lengths, weights, outputs, channels, room, blocks, taps,
    BM: tl.constexpr, BK: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Weights of each image's living channels side by side: ``weights [images, taps, outputs, room]``."""
    tiles = tl.cdiv(outputs, BM)
    m = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    tap = tl.program_id(0) // tiles % taps
    image = (tl.program_id(0) // tiles // taps).to(INDEX)
    length = tl.load(lengths + image)
    for k0 in range(0, length, BK):
        k = k0 + tl.arange(0, BK)
        channel = tl.load(lists + image * blocks * room + k)
        place = ((tap * channels + channel).to(INDEX) * outputs)[:, None] + m[None, :]
        a = tl.load(at + place, (m < outputs)[None, :], 0.0)
        to = (((image * taps + tap) * outputs + m).to(INDEX) * room)[:, None] + k[None, :]
        tl.store(weights + to, tl.trans(a), (m < outputs)[:, None])


@triton.jit
@no_type_check
def living_kernel(
    at, bias, near, lists, lengths, y, outputs, channels, room, blocks, pixels, out_width, height, width,
    y_n, y_m, y_p,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, BIAS: tl.constexpr, LISTED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``y[m, pixel] = bias[m] + sum over taps and living channels of a[tap, channel, m] * x[channel, pixel + tap]``.

    ``at [taps * channels, outputs]`` is read through the image's list (``LISTED``), or is what `gather_weights_kernel`
    wrote.
    """
    tiles_m = tl.cdiv(outputs, BM)
    tiles_n = tl.cdiv(pixels, BN)
    m = tl.program_id(0) % tiles_m * BM + tl.arange(0, BM)
    image = (tl.program_id(0) // tiles_m // tiles_n).to(INDEX)
    pixel = tl.program_id(0) // tiles_m % tiles_n * BN + tl.arange(0, BN)
    top = pixel // out_width * SH - PH
    left = pixel % out_width * SW - PW
    deep = tl.cdiv(tl.load(lengths + image), BK)
    from_x = near + image * (height * width) * room
    sums = tl.zeros((BM, BN), tl.float32)
    for step in range(deep * KH * KW):
        tap = step // deep
        k = step % deep * BK + tl.arange(0, BK)
        if LISTED:
            channel = tl.load(lists + image * blocks * room + k)
            place = ((tap * channels + channel).to(INDEX) * outputs)[:, None] + m[None, :]
            a = tl.trans(tl.load(at + place, (m < outputs)[None, :], 0.0))
        else:
            place = (((image * KH * KW + tap) * outputs + m).to(INDEX) * room)[:, None] + k[None, :]
            a = tl.load(at + place, (m < outputs)[:, None], 0.0)
        h = top + tap // KW * DH
        v = left + tap % KW * DW
        inside = (pixel < pixels) & (h >= 0) & (h < height) & (v >= 0) & (v < width)
        b = tl.load(from_x + (((h * width + v).to(INDEX) * room)[:, None] + k[None, :]), inside[:, None], 0.0)
        if UPCAST:
            a, b = a.to(tl.float32), b.to(tl.float32)
        sums = tl.dot(a, tl.trans(b), sums, input_precision=PRECISION, out_dtype=tl.float32)
    if BIAS:
        sums += tl.load(bias + m, m < outputs, 0.0).to(tl.float32)[:, None]
    place = (m.to(INDEX) * y_m)[:, None] + (image * y_n + pixel.to(INDEX) * y_p)[None, :]
    tl.store(y + place, rounded(sums, y.dtype.element_ty, UPCAST), (m < outputs)[:, None] & (pixel < pixels)[None, :])

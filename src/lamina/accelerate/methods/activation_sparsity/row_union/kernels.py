"""Kernels of convolutions over the channels that live in each image: those with a non-zero somewhere in it.

An image's living channels are brought side by side, pixel after pixel, so that tensor cores read whole rows of them;
what is multiplied by them is found through the image's list. Tensor cores read 16 bits: float32 numbers become halves.

Common compile-time switches are those of `kernels`. ``x_p`` is from a pixel to the next, which are evenly apart; ``X``
and ``W`` are how many halves maps and weights have, 0 where they are of 16 bits themselves.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.common.split_fp16.kernels import split_hi_lo
from lamina.accelerate.methods.activation_sparsity.split_fp16.kernels import (
    added,
    has_nan,
    power_of_two,
    scaled_back,
    shift_of,
)
from lamina.accelerate.runtime.triton_utils import rounded


@triton.jit
@no_type_check
def live_kernel(
    x, live, peaks, channels, pixels, x_n, x_c, x_p, BC: tl.constexpr, BP: tl.constexpr, X: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """Which channels of each image have a non-zero: int8 ``live [images, channels]``.

    For halves also the largest finite magnitude of each block of channels, ``peaks [images, blocks]``.
    """
    blocks = tl.cdiv(channels, BC)
    image = (tl.program_id(0) // blocks).to(INDEX)
    channel = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    found = tl.zeros((BC,), tl.int32)
    peak = tl.zeros((BC,), tl.float32)
    for p0 in range(0, pixels, BP):
        pixel = p0 + tl.arange(0, BP)
        place = (channel.to(INDEX) * x_c)[:, None] + (pixel.to(INDEX) * x_p)[None, :]
        known = (channel < channels)[:, None] & (pixel < pixels)[None, :]
        value = tl.load(x + image * x_n + place, known, 0.0).to(tl.float32)
        found |= tl.max((value != 0).to(tl.int32), axis=1)
        if X:
            value = tl.abs(value)
            peak = tl.maximum(peak, tl.max(tl.where(value < float("inf"), value, 0.0), axis=1))
    tl.store(live + image * channels + channel, found.to(tl.int8), channel < channels)
    if X:
        tl.store(peaks + tl.program_id(0), tl.max(peak, axis=0))


@triton.jit
@no_type_check
def gather_kernel(
    x, live, peaks, lists, lengths, shifts, high, low, channels, pixels, room, parts, x_n, x_c, x_p,
    ALL: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr, X: tl.constexpr, PARTS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Living channels side by side, ``high`` and ``low [images, pixels, room]``, in their order.

    Then zeros to whole ``BK``. ``lists [images, room]`` has their numbers, and ``channels`` where there is none. All
    channels are taken to live where more than three quarters do: images of which all do are multiplied together.
    """
    deep = room // BK
    blocks = tl.cdiv(pixels, BP)
    k = tl.program_id(0) % deep * BK + tl.arange(0, BK)
    block = tl.program_id(0) // deep % blocks
    image = (tl.program_id(0) // deep // blocks).to(INDEX)
    length = 0
    for c0 in range(0, channels, ALL):
        channel = c0 + tl.arange(0, ALL)
        length += tl.sum(tl.load(live + image * channels + channel, channel < channels, 0).to(tl.int32), axis=0)
    whole = length * 4 > channels * 3
    length = tl.where(whole, channels, length)
    if X:
        shift = shift_of(peaks + image * parts, parts, PARTS)
    if tl.program_id(0) % (deep * blocks) == 0:
        tl.store(lengths + image, length)
        if X:
            tl.store(shifts + image, shift)
    if tl.program_id(0) % deep * BK < length:
        number = k
        if not whole:
            number = tl.zeros((BK,), tl.int32)
            taken = 0
            for c0 in range(0, channels, ALL):
                channel = c0 + tl.arange(0, ALL)
                lives = tl.load(live + image * channels + channel, channel < channels, 0).to(tl.int32)
                place = tl.where(lives != 0, taken + tl.cumsum(lives, axis=0), 0) - 1
                number += tl.sum(tl.where(place[None, :] == k[:, None], channel[None, :], 0), axis=1)
                taken += tl.sum(lives, axis=0)
        if block == 0:
            tl.store(lists + image * room + k, tl.where(k < length, number, channels))
        pixel = block * BP + tl.arange(0, BP)
        known = (pixel < pixels)[:, None] & (k < length)[None, :]
        place = (pixel.to(INDEX) * x_p)[:, None] + (number.to(INDEX) * x_c)[None, :]
        value = tl.load(x + image * x_n + place, known, 0.0)
        place = ((image * pixels + pixel).to(INDEX) * room)[:, None] + k[None, :]
        if X:
            value, rest = split_hi_lo(value.to(tl.float32) * power_of_two(shift))
            if X == 2:
                tl.store(low + place, rest, (pixel < pixels)[:, None])
        tl.store(high + place, value, (pixel < pixels)[:, None])


@triton.jit
@no_type_check
def living_sums(
    at, at_low, high, low, lists, lengths, outputs, columns, channels, room, pixels, out_width, height, width, m, start,
    alike, LISTED: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, X: tl.constexpr, W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """A tile ``[BN, BM]`` of the product: of several images together where they are ``alike``, else one by one."""
    column = start + tl.arange(0, BN)
    image = column // pixels
    top = column % pixels // out_width * SH - PH
    left = column % pixels % out_width * SW - PW
    last = tl.where(alike, start, tl.minimum(start + BN, columns) - 1) // pixels
    sums = tl.zeros((BN, BM), tl.float32)
    for one in range(start // pixels, last + 1):
        mine = (column < columns) & (alike | (image == one))
        listed = lists + tl.cast(one, INDEX) * room
        deep = tl.cdiv(tl.load(lengths + one), BK)
        if LISTED:
            ahead = tl.load(listed + tl.arange(0, BK))
        for step in range(deep * KH * KW):
            tap = step // deep
            k = step % deep * BK + tl.arange(0, BK)
            number = k
            if LISTED:
                number = ahead
                ahead = tl.load(listed + ((step + 1) % deep * BK + tl.arange(0, BK)))
            place = ((tap * channels + number).to(INDEX) * outputs)[:, None] + m[None, :]
            known = (number < channels)[:, None] & (m < outputs)[None, :]
            h = top + tap // KW * DH
            v = left + tap % KW * DW
            inside = (mine & (h >= 0) & (h < height) & (v >= 0) & (v < width))[:, None]
            source = (image.to(INDEX) * height + h) * width + v
            from_pixel = (source * room)[:, None] + k[None, :]
            a = tl.load(at + place, known, 0.0)
            b = tl.load(high + from_pixel, inside, 0.0)
            a_low = a
            if W == 2:
                a_low = tl.load(at_low + place, known, 0.0)
            b_low = b
            if X == 2:
                b_low = tl.load(low + from_pixel, inside, 0.0)
            sums = added(sums, b, b_low, a, a_low, X, W, UPCAST)
    return sums


@triton.jit
@no_type_check
def living_kernel(
    at, at_low, at_peaks, bias, high, low, lists, lengths, shifts, y, outputs, columns, channels, room,
    pixels, out_width, height, width, y_n, y_m, y_p,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, BIAS: tl.constexpr, X: tl.constexpr, W: tl.constexpr, SHARES: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NARROW: tl.constexpr, UPCAST: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """``y[m, pixel] = bias[m] + sum over taps and living channels of a[tap, channel, m] * x[channel, pixel + tap]``.

    ``at [taps * channels, outputs]`` is read through the image's list, ``BK`` channels at a time where all live, and
    ``NARROW`` ones, so that fewer are empty, where not.
    """
    tiles_m = tl.cdiv(outputs, BM)
    m = tl.program_id(0) % tiles_m * BM + tl.arange(0, BM)
    start = tl.program_id(0) // tiles_m * BN
    column = start + tl.arange(0, BN)
    image = column // pixels
    alike = tl.min(tl.load(lengths + image, column < columns, channels), axis=0) == channels
    if alike:
        sums = living_sums(
            at, at_low, high, low, lists, lengths, outputs, columns, channels, room, pixels, out_width, height, width,
            m, start, True, False, KH, KW, SH, SW, PH, PW, DH, DW, X, W, BM, BN, BK, UPCAST, INDEX,
        )  # fmt: skip
    else:
        sums = living_sums(
            at, at_low, high, low, lists, lengths, outputs, columns, channels, room, pixels, out_width, height, width,
            m, start, False, True, KH, KW, SH, SW, PH, PW, DH, DW, X, W, BM, BN, NARROW, UPCAST, INDEX,
        )  # fmt: skip
    if W == 2:  # noqa: SIM102
        if has_nan(sums):
            plain = living_sums(
                at, at_low, high, low, lists, lengths, outputs, columns, channels, room, pixels, out_width, height,
                width, m, start, alike, True, KH, KW, SH, SW, PH, PW, DH, DW, 1, 1, BM, BN, NARROW, UPCAST, INDEX,
            )  # fmt: skip
            sums = tl.where(sums != sums, plain, sums)
    if X:
        sums = scaled_back(sums, tl.load(shifts + image, column < columns, 0)[:, None], at_peaks, SHARES)
    if BIAS:
        sums += tl.load(bias + m, m < outputs, 0.0).to(tl.float32)[None, :]
    place = (image.to(INDEX) * y_n + (column % pixels).to(INDEX) * y_p)[:, None] + (m.to(INDEX) * y_m)[None, :]
    tl.store(y + place, rounded(sums, y.dtype.element_ty, UPCAST), (column < columns)[:, None] & (m < outputs)[None, :])

"""Convolutions over the active channels of each image: those with a non-zero anywhere in it.

An image's active channels are compacted, pixel by pixel, so that tensor cores read contiguous rows of them; the rows of
the weight are gathered through the image's channel list. Float32 operands are split into float16 terms.

The constexprs are those of `activation_sparsity.kernels`. ``x_p`` is the stride of pixels; ``X_TERMS`` and ``W_TERMS``
are the float16 terms of maps and weights, 0 where they are 16-bit types themselves.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.common.split_fp16.kernels import split_hi_lo
from lamina.accelerate.methods.activation_sparsity.row_union.split_fp16.kernels import (
    descale,
    dot_split_fp16,
    has_nan,
    power_of_two,
    scale_exponent,
)
from lamina.accelerate.runtime.triton_utils import rounded


@triton.jit
@no_type_check
def active_channels_kernel(
    x, active, partial_amax, channels, pixels, x_n, x_c, x_p, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
    X_TERMS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Which channels of each image hold a non-zero: int8 ``active [images, channels]``.

    With split-fp16 also the finite amax of each block of channels, ``partial_amax [images, blocks]``.
    """
    blocks = tl.cdiv(channels, BLOCK_C)
    image = (tl.program_id(0) // blocks).to(INDEX)
    channel = tl.program_id(0) % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    any_nonzero = tl.zeros((BLOCK_C,), tl.int32)
    amax = tl.zeros((BLOCK_C,), tl.float32)
    for p0 in range(0, pixels, BLOCK_P):
        pixel = p0 + tl.arange(0, BLOCK_P)
        offset = (channel.to(INDEX) * x_c)[:, None] + (pixel.to(INDEX) * x_p)[None, :]
        mask = (channel < channels)[:, None] & (pixel < pixels)[None, :]
        value = tl.load(x + image * x_n + offset, mask, 0.0).to(tl.float32)
        any_nonzero |= tl.max((value != 0).to(tl.int32), axis=1)
        if X_TERMS:
            value = tl.abs(value)
            amax = tl.maximum(amax, tl.max(tl.where(value < float("inf"), value, 0.0), axis=1))
    tl.store(active + image * channels + channel, any_nonzero.to(tl.int8), channel < channels)
    if X_TERMS:
        tl.store(partial_amax + tl.program_id(0), tl.max(amax, axis=0))


@triton.jit
@no_type_check
def compact_kernel(
    x, active, partial_amax, lists, lengths, exponents, hi, lo, channels, pixels, capacity, num_partials, x_n, x_c, x_p,
    BLOCK_CHANNELS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, X_TERMS: tl.constexpr,
    BLOCK_PARTIALS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Compact the active channels, ascending, to ``hi`` and ``lo [images, pixels, capacity]``.

    They are padded with zeros to multiples of ``BLOCK_K``. ``lists [images, capacity]`` holds the channel indices,
    padded with ``channels``. An image with more than three quarters of its channels active counts as fully active, so
    that such images can be multiplied together.
    """
    k_blocks = capacity // BLOCK_K
    blocks = tl.cdiv(pixels, BLOCK_P)
    k = tl.program_id(0) % k_blocks * BLOCK_K + tl.arange(0, BLOCK_K)
    block = tl.program_id(0) // k_blocks % blocks
    image = (tl.program_id(0) // k_blocks // blocks).to(INDEX)
    length = 0
    for c0 in range(0, channels, BLOCK_CHANNELS):
        channel = c0 + tl.arange(0, BLOCK_CHANNELS)
        length += tl.sum(tl.load(active + image * channels + channel, channel < channels, 0).to(tl.int32), axis=0)
    all_active = length * 4 > channels * 3
    length = tl.where(all_active, channels, length)
    if X_TERMS:
        exponent = scale_exponent(partial_amax + image * num_partials, num_partials, BLOCK_PARTIALS)
    if tl.program_id(0) % (k_blocks * blocks) == 0:
        tl.store(lengths + image, length)
        if X_TERMS:
            tl.store(exponents + image, exponent)
    if tl.program_id(0) % k_blocks * BLOCK_K < length:
        index = k
        if not all_active:
            index = tl.zeros((BLOCK_K,), tl.int32)
            num_before = 0
            for c0 in range(0, channels, BLOCK_CHANNELS):
                channel = c0 + tl.arange(0, BLOCK_CHANNELS)
                active_here = tl.load(active + image * channels + channel, channel < channels, 0).to(tl.int32)
                offset = tl.where(active_here != 0, num_before + tl.cumsum(active_here, axis=0), 0) - 1
                index += tl.sum(tl.where(offset[None, :] == k[:, None], channel[None, :], 0), axis=1)
                num_before += tl.sum(active_here, axis=0)
        if block == 0:
            tl.store(lists + image * capacity + k, tl.where(k < length, index, channels))
        pixel = block * BLOCK_P + tl.arange(0, BLOCK_P)
        mask = (pixel < pixels)[:, None] & (k < length)[None, :]
        offset = (pixel.to(INDEX) * x_p)[:, None] + (index.to(INDEX) * x_c)[None, :]
        value = tl.load(x + image * x_n + offset, mask, 0.0)
        offset = ((image * pixels + pixel).to(INDEX) * capacity)[:, None] + k[None, :]
        if X_TERMS:
            value, value_lo = split_hi_lo(value.to(tl.float32) * power_of_two(exponent))
            if X_TERMS == 2:
                tl.store(lo + offset, value_lo, (pixel < pixels)[:, None])
        tl.store(hi + offset, value, (pixel < pixels)[:, None])


@triton.jit
@no_type_check
def compacted_conv_sums(
    at, at_lo, hi, lo, lists, lengths, outputs, columns, channels, capacity, pixels, out_width, height, width, m, start,
    all_active, LISTED: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, X_TERMS: tl.constexpr, W_TERMS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """A tile ``[BLOCK_N, BLOCK_M]`` of the product: of all its images at once if ``all_active``, else one by one."""
    column = start + tl.arange(0, BLOCK_N)
    image = column // pixels
    top = column % pixels // out_width * SH - PH
    left = column % pixels % out_width * SW - PW
    last = tl.where(all_active, start, tl.minimum(start + BLOCK_N, columns) - 1) // pixels
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for image_index in range(start // pixels, last + 1):
        in_image = (column < columns) & (all_active | (image == image_index))
        channel_list = lists + tl.cast(image_index, INDEX) * capacity
        k_blocks = tl.cdiv(tl.load(lengths + image_index), BLOCK_K)
        if LISTED:
            next_index = tl.load(channel_list + tl.arange(0, BLOCK_K))
        for step in range(k_blocks * KH * KW):
            tap = step // k_blocks
            k = step % k_blocks * BLOCK_K + tl.arange(0, BLOCK_K)
            index = k
            if LISTED:
                index = next_index
                next_index = tl.load(channel_list + ((step + 1) % k_blocks * BLOCK_K + tl.arange(0, BLOCK_K)))
            offset = ((tap * channels + index).to(INDEX) * outputs)[:, None] + m[None, :]
            mask = (index < channels)[:, None] & (m < outputs)[None, :]
            h = top + tap // KW * DH
            v = left + tap % KW * DW
            inside = (in_image & (h >= 0) & (h < height) & (v >= 0) & (v < width))[:, None]
            source = (image.to(INDEX) * height + h) * width + v
            x_offset = (source * capacity)[:, None] + k[None, :]
            a = tl.load(at + offset, mask, 0.0)
            b = tl.load(hi + x_offset, inside, 0.0)
            a_lo = a
            if W_TERMS == 2:
                a_lo = tl.load(at_lo + offset, mask, 0.0)
            b_lo = b
            if X_TERMS == 2:
                b_lo = tl.load(lo + x_offset, inside, 0.0)
            acc = dot_split_fp16(acc, b, b_lo, a, a_lo, X_TERMS, W_TERMS, UPCAST)
    return acc


@triton.jit
@no_type_check
def compacted_conv_kernel(
    at, at_lo, at_amax, bias, hi, lo, lists, lengths, exponents, y, outputs, columns, channels, capacity,
    pixels, out_width, height, width, y_n, y_m, y_p,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, BIAS: tl.constexpr, X_TERMS: tl.constexpr, W_TERMS: tl.constexpr,
    W_PARTIALS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    NARROW_BLOCK_K: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``y[m, pixel] = bias[m] + sum over taps and active channels of at[tap, channel, m] * x[channel, pixel + tap]``.

    ``at [taps * channels, outputs]`` is gathered through the image's list: ``BLOCK_K`` channels at a time where all are
    active, else ``NARROW_BLOCK_K``, which pads less.
    """
    tiles_m = tl.cdiv(outputs, BLOCK_M)
    m = tl.program_id(0) % tiles_m * BLOCK_M + tl.arange(0, BLOCK_M)
    start = tl.program_id(0) // tiles_m * BLOCK_N
    column = start + tl.arange(0, BLOCK_N)
    image = column // pixels
    all_active = tl.min(tl.load(lengths + image, column < columns, channels), axis=0) == channels
    if all_active:
        acc = compacted_conv_sums(
            at, at_lo, hi, lo, lists, lengths, outputs, columns, channels, capacity, pixels, out_width, height, width,
            m, start, True, False, KH, KW, SH, SW, PH, PW, DH, DW, X_TERMS, W_TERMS, BLOCK_M, BLOCK_N, BLOCK_K, UPCAST,
            INDEX,
        )  # fmt: skip
    else:
        acc = compacted_conv_sums(
            at, at_lo, hi, lo, lists, lengths, outputs, columns, channels, capacity, pixels, out_width, height, width,
            m, start, False, True, KH, KW, SH, SW, PH, PW, DH, DW, X_TERMS, W_TERMS, BLOCK_M, BLOCK_N, NARROW_BLOCK_K,
            UPCAST, INDEX,
        )  # fmt: skip
    if W_TERMS == 2:  # noqa: SIM102
        if has_nan(acc):
            unsplit = compacted_conv_sums(
                at, at_lo, hi, lo, lists, lengths, outputs, columns, channels, capacity, pixels, out_width, height,
                width, m, start, all_active, True, KH, KW, SH, SW, PH, PW, DH, DW, 1, 1, BLOCK_M, BLOCK_N,
                NARROW_BLOCK_K, UPCAST, INDEX,
            )  # fmt: skip
            acc = tl.where(acc != acc, unsplit, acc)
    if X_TERMS:
        acc = descale(acc, tl.load(exponents + image, column < columns, 0)[:, None], at_amax, W_PARTIALS)
    if BIAS:
        acc += tl.load(bias + m, m < outputs, 0.0).to(tl.float32)[None, :]
    offset = (image.to(INDEX) * y_n + (column % pixels).to(INDEX) * y_p)[:, None] + (m.to(INDEX) * y_m)[None, :]
    tl.store(y + offset, rounded(acc, y.dtype.element_ty, UPCAST), (column < columns)[:, None] & (m < outputs)[None, :])

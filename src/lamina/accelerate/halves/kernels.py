"""The power of two that brings a tensor's largest number to where float16 is finest.

Without a second launch, a wait or an order of additions: each program writes the largest number of its share, and who
needs the whole reads all of these, which are few.
"""

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from lamina.spec import Cost

SHARES = 512
"""Shares of a tensor, at most; a power of two."""

TOP = 12
"""The largest number comes to lie in ``[2**TOP, 2**(TOP + 1))``: float16 ends before 2**16, so that sums of eight
still fit, and is at full precision from 2**-14 up."""


@triton.jit
@no_type_check
def peaks_kernel(x, out, numel, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """The largest magnitude of each share of ``x [numel]`` to ``out [programs]``; NaN is passed over."""
    start = tl.program_id(0).to(INDEX) * BLOCK
    most = tl.zeros((BLOCK,), tl.float32)
    for first in range(start, numel, tl.num_programs(0).to(INDEX) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        most = tl.maximum(most, tl.abs(tl.load(x + at, at < numel, 0.0).to(tl.float32)))
    tl.store(out + tl.program_id(0), tl.max(most, 0))


@triton.jit
@no_type_check
def largest(x, numel, share, shares, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """The largest finite magnitude of one share of ``x [numel]``."""
    most = tl.zeros((BLOCK,), tl.float32)
    for first in range(share.to(INDEX) * BLOCK, numel, shares.to(INDEX) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        values = tl.abs(tl.load(x + at, at < numel, 0.0).to(tl.float32))
        most = tl.maximum(most, tl.where(values < float("inf"), values, 0.0))
    return tl.max(most, 0)


@triton.jit
@no_type_check
def pair_peaks_kernel(
    x, y, out, x_numel, y_numel, x_shares, y_shares, BLOCK: tl.constexpr, INDEX: tl.constexpr, EARLY: tl.constexpr
):
    """The largest finite magnitude of each share of ``x``, then of each of ``y``; ``EARLY`` as circulant's kernels."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    program = tl.program_id(0)
    if program < x_shares:
        peak = largest(x, x_numel, program, x_shares, BLOCK, INDEX)
    else:
        peak = largest(y, y_numel, program - x_shares, y_shares, BLOCK, INDEX)
    tl.store(out + program, peak)


@triton.jit
@no_type_check
def scale(peaks, SHARES: tl.constexpr, TOP: tl.constexpr):
    """The power of two, and what undoes it, from ``peaks [SHARES]``; one where all is zero or something is infinite."""
    peak = tl.max(tl.load(peaks + tl.arange(0, SHARES)), 0)
    exponent = (peak.to(tl.int32, bitcast=True) >> 23) - 127
    exponent = tl.where((peak > 0) & (exponent < 128), exponent, TOP)
    shift = tl.minimum(tl.maximum(TOP - exponent, -126), 126)
    up = ((127 + shift) << 23).to(tl.float32, bitcast=True)
    down = ((127 - shift) << 23).to(tl.float32, bitcast=True)
    return up, down


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
    if SHARES:
        values = values.to(tl.float32) * scale(peaks, SHARES, TOP)[0]
    place = (image.to(INDEX) * length + pixel)[:, None] * channels + c[None, :]
    high = values.to(out.dtype.element_ty)
    tl.store(out + place, high, known)
    if PARTS == 2:
        kept = high.to(tl.float32)
        finite = tl.abs(kept) < float("inf")
        rest = tl.where(finite, values, 0.0) - tl.where(finite, kept, 0.0)
        tl.store(out + apart + place, rest.to(tl.float16), known)


def split_cost(numel: int, parts: int, io_bytes: int) -> Cost:
    """A read of the tensor, and a write of its halves."""
    return Cost(0, numel * io_bytes, numel * parts * 2)

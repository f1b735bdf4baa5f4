"""Parts of kernels that multiply halves."""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.common.split_fp16 import kernels

TOP = tl.constexpr(14)
"""The largest finite number comes to lie in ``[2**TOP, 2**(TOP + 1))``."""


@triton.jit
@no_type_check
def shift_of(peaks, count, BLOCK: tl.constexpr):
    """The exponent of the power of two for the largest of ``peaks [count]``."""
    place = tl.arange(0, BLOCK)
    peak = tl.max(tl.load(peaks + place, place < count, 0.0), axis=0)
    return tl.minimum(TOP + 127 - (peak.to(tl.int32, bitcast=True) >> 23), 126)


@triton.jit
@no_type_check
def power_of_two(exponent):
    """``2 ** exponent`` as float32, for exponents within -126..127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
@no_type_check
def finite_peak(value):
    """The largest finite magnitude of a tile."""
    value = tl.abs(value)
    return tl.max(tl.max(tl.where(value < float("inf"), value, 0.0), axis=1), axis=0)


@triton.jit
@no_type_check
def added(sums, x, x_low, a, a_low, X: tl.constexpr, W: tl.constexpr, UPCAST: tl.constexpr):
    """``sums + x @ a`` from halves.

    Tensor cores cut off what does not fit their sums, which adds up over many; so where both halves matter, each step's
    products are summed apart, the small ones first.
    """
    if UPCAST:
        x, x_low, a, a_low = x.to(tl.float32), x_low.to(tl.float32), a.to(tl.float32), a_low.to(tl.float32)
    if W < 2:
        return tl.dot(x, a, sums, out_dtype=tl.float32)
    part = tl.dot(x, a_low, out_dtype=tl.float32)
    if X == 2:
        part = tl.dot(x_low, a, part, out_dtype=tl.float32)
    return sums + tl.dot(x, a, part, out_dtype=tl.float32)


@triton.jit
@no_type_check
def has_nan(sums):
    """Whether a tile has any, as an infinity by a low half of zero, or of another sign than the high one, gives."""
    return tl.max(tl.max((sums != sums).to(tl.int32), axis=1), axis=0) > 0


@triton.jit
@no_type_check
def scaled_back(sums, shift, peaks, SHARES: tl.constexpr):
    """Sums of products of activations under ``2 ** shift`` and of weights of these ``peaks [SHARES]`` as they are."""
    up, _ = kernels.load_scale(peaks, SHARES, kernels.TARGET_EXPONENT)
    exponent = 127 - (up.to(tl.int32, bitcast=True) >> 23) - shift
    half = exponent >> 1  # in two steps, none of which leaves float32 unless the result does
    return sums * power_of_two(half) * power_of_two(exponent - half)

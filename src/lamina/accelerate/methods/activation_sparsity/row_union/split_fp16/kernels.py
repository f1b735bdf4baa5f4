"""Split-fp16 device functions: float32 products from float16 terms under power-of-two scales."""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.common.split_fp16 import kernels

TARGET_EXPONENT = tl.constexpr(14)
"""The finite amax is scaled to ``[2**TARGET_EXPONENT, 2**(TARGET_EXPONENT + 1))``."""


@triton.jit
@no_type_check
def scale_exponent(partial_amax, num_partials, BLOCK: tl.constexpr):
    """The exponent of the power-of-two scale for ``partial_amax [num_partials]``."""
    partial = tl.arange(0, BLOCK)
    amax = tl.max(tl.load(partial_amax + partial, partial < num_partials, 0.0), axis=0)
    return tl.minimum(TARGET_EXPONENT + 127 - (amax.to(tl.int32, bitcast=True) >> 23), 126)


@triton.jit
@no_type_check
def power_of_two(exponent):
    """``2 ** exponent`` as float32, for exponents in ``[-126, 127]``."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
@no_type_check
def finite_amax(value):
    """The largest finite magnitude of a tile."""
    value = tl.abs(value)
    return tl.max(tl.max(tl.where(value < float("inf"), value, 0.0), axis=1), axis=0)


@triton.jit
@no_type_check
def dot_split_fp16(acc, x, x_lo, a, a_lo, X_TERMS: tl.constexpr, W_TERMS: tl.constexpr, UPCAST: tl.constexpr):
    """``acc + x @ a`` from float16 terms.

    Tensor cores truncate when they accumulate, an error that grows with the number of steps. With two terms, each step
    therefore accumulates in a fresh register tile, low-order products first, which is then added in float32.
    """
    if UPCAST:
        x, x_lo, a, a_lo = x.to(tl.float32), x_lo.to(tl.float32), a.to(tl.float32), a_lo.to(tl.float32)
    if W_TERMS < 2:
        return tl.dot(x, a, acc, out_dtype=tl.float32)
    part = tl.dot(x, a_lo, out_dtype=tl.float32)
    if X_TERMS == 2:
        part = tl.dot(x_lo, a, part, out_dtype=tl.float32)
    return acc + tl.dot(x, a, part, out_dtype=tl.float32)


@triton.jit
@no_type_check
def has_nan(acc):
    """Whether a tile has a NaN: an infinity times a low term of zero, or of the opposite sign, gives one."""
    return tl.max(tl.max((acc != acc).to(tl.int32), axis=1), axis=0) > 0


@triton.jit
@no_type_check
def descale(acc, exponent, partial_amax, W_PARTIALS: tl.constexpr):
    """Undo the scales: ``2 ** exponent`` of activations, and that of weights with ``partial_amax [W_PARTIALS]``."""
    w_scale, _ = kernels.load_scale(partial_amax, W_PARTIALS, kernels.TARGET_EXPONENT)
    exponent = 127 - (w_scale.to(tl.int32, bitcast=True) >> 23) - exponent
    half = exponent >> 1  # two factors, so that no intermediate leaves float32's range unless the result does
    return acc * power_of_two(half) * power_of_two(exponent - half)

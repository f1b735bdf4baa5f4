"""float32 numbers as float16 halves, for products on tensor cores: one half is as exact as TF32, two have 22 bits.

Activations stand under powers of two that bring the largest finite number of an image, or of a tile of columns, just
below float16's largest. Numbers less than it by 2**29, or 2**18 with both halves, have fewer bits, down to its 2**-39th
part. Infinities and NaN stay in the high half.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from lamina.accelerate.halves import kernels, ops
from lamina.accelerate.kernels import rounded
from lamina.accelerate.ops import precision

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
def split(value, up):
    """High and low halves of ``value * up``."""
    value = value.to(tl.float32) * up
    high = value.to(tl.float16)
    low = tl.where(tl.abs(value) < float("inf"), value - high.to(tl.float32), 0.0)
    return high, low.to(tl.float16)


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
    up, _ = kernels.scale(peaks, SHARES, kernels.TOP)
    exponent = 127 - (up.to(tl.int32, bitcast=True) >> 23) - shift
    half = exponent >> 1  # in two steps, none of which leaves float32 unless the result does
    return sums * power_of_two(half) * power_of_two(exponent - half)


@triton.jit
@no_type_check
def stored(y, sums, column, m, mask_column, mask_m, TURNED: tl.constexpr, UPCAST: tl.constexpr):
    """Write a tile ``[columns, outputs]`` to places ``column + m``; ``TURNED``, columns lie together, not outputs."""
    if TURNED:
        sums = tl.trans(sums)
        place, known = m[:, None] + column[None, :], mask_m[:, None] & mask_column[None, :]
    else:
        place, known = column[:, None] + m[None, :], mask_column[:, None] & mask_m[None, :]
    tl.store(y + place, rounded(sums, y.dtype.element_ty, UPCAST), known)


def parts_for(x: Tensor, one: bool = False) -> tuple[int, int]:
    """Halves of activations, ``one`` at most if so wanted, and of weights: none of 16 bits, two where float32 keeps
    its accuracy."""
    if x.dtype != torch.float32:
        return 0, 0
    return (1, 1) if precision() == "tf32" else (1 if one else 2, 2)


def weights(at: Tensor, parts: int) -> tuple[Tensor, Tensor]:
    """``at (rows, M)``, or ``(taps, C, M)``, of any strides side by side as ``(halves, rows, M)``, and its peaks."""
    x = (at if at.dim() == 3 else at[None]).transpose(1, 2)
    if not at.numel():
        return x.new_empty((2, 0), dtype=torch.float16 if parts else x.dtype), x.new_zeros(1, dtype=torch.float32)
    if not parts:
        return at.flatten(0, -2)[None] if at.is_contiguous() else ops.split(x, None, 1), x.new_empty(1)
    peaks = ops.peaks(gapless(x))
    return ops.split(x, peaks, parts), peaks


def gapless(x: Tensor) -> Tensor:
    """The same numbers in one piece of memory, in any order."""
    order = sorted(range(x.dim()), key=lambda axis: -x.stride()[axis])
    return x.permute(order).contiguous()

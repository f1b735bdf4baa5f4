"""Device functions that kernels share: programmatic dependent launch, rounding, fast division, window positions."""

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
@no_type_check
def griddepcontrol(PDL: tl.constexpr):
    """In a programmatic dependent launch (``PDL`` > 0), wait until the kernels in front have completed and are visible.

    A small kernel (``PDL`` 2) then lets the next one launch at once. After a larger one (1) the next launches when its
    programs end, since waiting programs would occupy the multiprocessors that it needs.
    """
    if PDL:
        gdc_wait()
    if PDL == 2:
        gdc_launch_dependents()


@triton.jit
@no_type_check
def rounded(x, DTYPE: tl.constexpr, UPCAST: tl.constexpr):
    """``x`` in ``DTYPE``, rounded to nearest even; only the interpreter (``UPCAST``) would truncate to bf16."""
    if UPCAST and tl.bfloat16 == DTYPE:
        bits = x.to(tl.int32, bitcast=True)
        nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
        x = tl.where(x == x, nearest, x)
    return x.to(DTYPE)


def fast_divisor(divisor: int) -> int:
    """The magic number of `fast_divide`: a 32-bit multiplier, and above it the shift plus one.

    Source: Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (1994).
    """
    shift = (divisor - 1).bit_length()
    return -(-(1 << 31 + shift) // divisor) | shift + 1 << 32


@triton.jit
@no_type_check
def fast_divide(x, magic):
    """``x // divisor`` for integers from 0 to below 2**31, where ``magic`` is the divisor's `fast_divisor`."""
    product = tl.umulhi(x.to(tl.uint32) * 2, (magic & 0xFFFFFFFF).to(tl.uint32))
    return (product >> ((magic >> 32) - 1).to(tl.uint32)).to(tl.int32)


@triton.jit
@no_type_check
def window_origin(
    row, height, width, height_magic, width_magic,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """The image of an output pixel and the first input pixel of its window.

    ``TRANSPOSED``: the image of an input pixel and the last output window that covers it, times the stride.

    Args:
        row: pixels, counted over all images.
        height, width: of the images of these pixels.
        height_magic, width_magic: their `fast_divisor`. Integer division is expensive, so that it is done once a pixel
            here and not at each tap.
    """
    line = fast_divide(row, width_magic)
    image = fast_divide(line, height_magic)
    y = line - image * height
    x = row - line * width
    if TRANSPOSED:
        return image, y + PH, x + PW
    return image, y * SH - PH, x * SW - PW


@triton.jit
@no_type_check
def window_row(
    image, y, x, tap, height, width, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """The pixel that a window reads at a tap, counted over all images, and whether it is inside the image.

    ``image, y, x`` are those of `window_origin`; ``height, width`` are those of the images that are read: the input, or
    with ``TRANSPOSED`` the output.
    """
    down = tap // KW * DH
    right = tap % KW * DW
    if TRANSPOSED:
        y = y - down
        x = x - right
        inside = (y >= 0) & (x >= 0)
        if SH > 1:
            inside &= y % SH == 0
            y = y // SH
        if SW > 1:
            inside &= x % SW == 0
            x = x // SW
    else:
        y = y + down
        x = x + right
        inside = (y >= 0) & (x >= 0)
    return (image * height + y) * width + x, inside & (y < height) & (x < width)

"""How kernels wait, narrow what they store and divide, and which rows a window meets."""

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
@no_type_check
def wait(EARLY: tl.constexpr):
    """Of a kernel that is launched early: until those in front have ended, and what they wrote can be read.

    One that leaves room for another (``EARLY`` 2) lets the next be launched now; behind a larger one (1) the next
    begins when its programs end, since those that wait would take the room of those that work.
    """
    if EARLY:
        gdc_wait()
    if EARLY == 2:
        gdc_launch_dependents()


@triton.jit
@no_type_check
def rounded(x, DTYPE: tl.constexpr, UPCAST: tl.constexpr):
    """``x`` as it is stored, rounded to nearest; the interpreter alone (``UPCAST``) would truncate to bf16."""
    if UPCAST and tl.bfloat16 == DTYPE:
        bits = x.to(tl.int32, bitcast=True)
        nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
        x = tl.where(x == x, nearest, x)
    return x.to(DTYPE)


def reciprocal(divisor: int) -> int:
    """What `quotient` divides by: a factor of 32 bits, and above it a shift and one (Granlund, Montgomery 1994)."""
    shift = (divisor - 1).bit_length()
    return -(-(1 << 31 + shift) // divisor) | shift + 1 << 32


@triton.jit
@no_type_check
def quotient(number, by):
    """``number // divisor`` of numbers from 0 to below 2**31, where ``by`` is the divisor's `reciprocal`."""
    product = tl.umulhi(number.to(tl.uint32) * 2, (by & 0xFFFFFFFF).to(tl.uint32))
    return (product >> ((by >> 32) - 1).to(tl.uint32)).to(tl.int32)


@triton.jit
@no_type_check
def origin(
    row, height, width, per_height, per_width, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    BACK: tl.constexpr,
):  # fmt: skip
    """The image of an output row and where its window begins; ``BACK``, of an input row and where the last one ends.

    ``height`` and ``width`` are those of the row's own image, of which `reciprocal` gives what they divide by:
    divisions are dear, and made here once a row, which meets many taps.
    """
    line = quotient(row, per_width)
    image = quotient(line, per_height)
    y = line - image * height
    x = row - line * width
    if BACK:
        return image, y + PH, x + PW
    return image, y * SH - PH, x * SW - PW


@triton.jit
@no_type_check
def source_row(
    image, y, x, tap, height, width, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """The row, of images of ``height`` by ``width``, that an origin meets through a tap, and whether there is one.

    ``BACK`` the other way round: the row of the output.
    """
    down = tap // KW * DH
    right = tap % KW * DW
    if BACK:
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

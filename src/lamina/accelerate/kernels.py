"""How kernels narrow what they store, and how they divide."""

from typing import no_type_check

import triton
import triton.language as tl


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

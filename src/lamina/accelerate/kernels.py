"""How kernels narrow what they store."""

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

"""Packed 32-bit formats, and the instruction costs of packing and unpacking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Conversion = Literal["fp32", "deft-16", "deft-16q", "ieee-half", "8-bit", "dfu_cvt_16", "dfu_cvt_8"]
"""``fp32``: one value per word, no conversion. In software: ``deft-16``, the upper 16 bits of each fp32 value;
``deft-16q``, the same without masking the lower 16 bits of the upper value; ``ieee-half``; ``8-bit``, a sign, N
exponent bits and 7 - N mantissa bits. ``dfu_cvt_16`` and ``dfu_cvt_8`` unpack ``deft-16q`` and ``8-bit`` with one
instruction per word."""
CONVERSIONS: tuple[Conversion, ...] = get_args(Conversion)
Slow = Literal["serial", "overlapped"]
"""Cost of an instruction below full rate: as many issue slots as it occupies its unit (``serial``), or one, as if that
unit ran in parallel with the others (``overlapped``). These are bounds of the actual cost."""
HALF_RATE, QUARTER_RATE = 2, 4


@dataclass(frozen=True)
class Cost:
    """Instructions by throughput on compute capability 6.1, per SM and cycle.

    ``full``: 128 (and, or, add; the fission unit). ``half``: 64 (shifts). ``quarter``: 32 (conversions between
    floating-point formats). Source: CUDA C++ Programming Guide, throughput of native arithmetic instructions.
    """

    full: int = 0
    half: int = 0
    quarter: int = 0

    @property
    def instructions(self) -> int:
        return self.full + self.half + self.quarter

    def slots(self, slow: Slow) -> int:
        """Issue slots of a SIMD."""
        if slow == "overlapped":
            return self.instructions
        return self.full + HALF_RATE * self.half + QUARTER_RATE * self.quarter


@dataclass(frozen=True)
class Format:
    """``values`` per word, and the cost of packing them and of unpacking them to fp32."""

    values: Literal[1, 2, 4]
    pack: Cost
    unpack: Cost


PACK_16 = Cost(full=1, half=1)
"""Shift one value down and merge it with the upper 16 bits of the other."""
PACK_8 = Cost(full=2 * 4 + 3, half=4 + 3)
"""Per value: change the bias, shift exponent and mantissa up, merge the sign. Then three shifts and merges."""

FORMATS: dict[Conversion, Format] = {
    "fp32": Format(1, Cost(), Cost()),
    "deft-16": Format(2, PACK_16, Cost(full=1, half=1)),  # shift one up, mask the other
    "deft-16q": Format(2, PACK_16, Cost(half=1)),  # shift one up, use the word itself as the other
    "ieee-half": Format(2, Cost(full=1, half=1, quarter=2), Cost(quarter=2)),
    # Shift three to the top; for each: arithmetic shift down, clear the sign-extended bits, add the bias.
    "8-bit": Format(4, PACK_8, Cost(full=2 * 4, half=3 + 4)),
    "dfu_cvt_16": Format(2, PACK_16, Cost(full=1)),
    "dfu_cvt_8": Format(4, PACK_8, Cost(full=1)),
}
"""The unit only unpacks words (DeftNN, section 4.2.3): packing is always in software."""

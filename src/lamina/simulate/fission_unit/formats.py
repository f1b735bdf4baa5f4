"""What a 32-bit word holds, and what it costs to pack it and to take it apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Conversion = Literal["fp32", "deft-16", "deft-16q", "ieee-half", "8-bit", "dfu_cvt_16", "dfu_cvt_8"]
"""``fp32``: one value a word, nothing to convert. In software: ``deft-16``, the upper half of each fp32 value;
``deft-16q``, the same with the lower half's bits left behind the upper value; ``ieee-half``; ``8-bit``, a sign,
N exponent bits and 7 - N of the mantissa. ``dfu_cvt_16`` and ``dfu_cvt_8`` take ``deft-16q`` and ``8-bit`` apart with
one instruction a word."""
CONVERSIONS: tuple[Conversion, ...] = get_args(Conversion)
Slow = Literal["serial", "overlapped"]
"""What an instruction below full rate costs: as many issue slots as it keeps its unit (``serial``), or one, as if
that unit worked beside the others (``overlapped``). The truth lies between."""
HALF_RATE, QUARTER_RATE = 2, 4


@dataclass(frozen=True)
class Cost:
    """Instructions by their rate on compute capability 6.1, per multiprocessor and cycle.

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
    """``values`` in a word; what it takes to make a word of them and to have them back as fp32."""

    values: Literal[1, 2, 4]
    pack: Cost
    unpack: Cost


PACK_16 = Cost(full=1, half=1)
"""Shift one value down, merge it with the upper half of the other."""
PACK_8 = Cost(full=2 * 4 + 3, half=4 + 3)
"""Of each value: change the bias, shift exponent and mantissa up, merge the sign. Then three shifts and merges."""

FORMATS: dict[Conversion, Format] = {
    "fp32": Format(1, Cost(), Cost()),
    "deft-16": Format(2, PACK_16, Cost(full=1, half=1)),  # shift one up, mask the other
    "deft-16q": Format(2, PACK_16, Cost(half=1)),  # shift one up, use the word itself as the other
    "ieee-half": Format(2, Cost(full=1, half=1, quarter=2), Cost(quarter=2)),
    # Shift three to the top; of each, shift down with the sign, clear what it spread over, add the bias.
    "8-bit": Format(4, PACK_8, Cost(full=2 * 4, half=3 + 4)),
    "dfu_cvt_16": Format(2, PACK_16, Cost(full=1)),
    "dfu_cvt_8": Format(4, PACK_8, Cost(full=1)),
}
"""The unit only takes words apart (DeftNN, section 4.2.3): packing is software everywhere."""

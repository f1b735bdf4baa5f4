"""Every sequence of instructions that is counted does what it is counted for, on the bits of random values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.simulate.fission_unit import reference
from lamina.simulate.fission_unit.formats import CONVERSIONS, FORMATS, HALF_RATE, QUARTER_RATE, Conversion, Cost

VALUES = st.floats(2**-6, 1.75, width=32) | st.floats(-1.75, -(2**-6), width=32)
EXPONENT = 4
BIAS = reference.bias_difference(EXPONENT) << 23


class Counted:
    """Whole-number instructions on words, counted by their rate."""

    def __init__(self) -> None:
        self.full = self.half = 0

    def left(self, word: int, by: int) -> int:
        self.half += 1
        return word << by & 0xFFFFFFFF

    def right(self, word: int, by: int) -> int:
        self.half += 1
        return word >> by

    def spread(self, word: int, by: int) -> int:
        """Shift down, the sign coming after."""
        self.half += 1
        return (word - (word >> 31 << 32)) >> by & 0xFFFFFFFF

    def select(self, word: int, mask: int, other: int = 0) -> int:
        """Any function of three words is one instruction."""
        self.full += 1
        return word & mask | other

    def add(self, word: int, other: int) -> int:
        self.full += 1
        return word + other & 0xFFFFFFFF

    @property
    def cost(self) -> Cost:
        return Cost(full=self.full, half=self.half)


def bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def value(word: int) -> float:
    return float(np.uint32(word).view(np.float32))


def packed_16(does: Counted, low: int, high: int) -> int:
    return does.select(high, 0xFFFF0000, does.right(low, 16))


def packed_8(does: Counted, words: list[int]) -> int:
    """Sign, exponent and mantissa of each to the top, then all behind each other."""
    tops = []
    for word in words:
        small = does.add(word, -BIAS)
        tops.append(does.select(word, 0x80000000, does.left(small, 8 - EXPONENT) & 0x7FFFFFFF))
    packed = tops[3] & 0xFF000000
    for place, top in enumerate(tops[:3]):
        moved = does.right(top, 24 - 8 * place)
        packed = does.select(moved, 0xFF << 8 * place, packed)
    return packed


def unpacked_8(does: Counted, word: int) -> list[int]:
    found = []
    for place in range(4):
        top = word if place == 3 else does.left(word, 24 - 8 * place)
        kept = does.select(does.spread(top, 8 - EXPONENT), 0x80000000 | 0x7F << (16 + EXPONENT))
        found.append(does.add(kept, BIAS))
    return found


@given(VALUES, VALUES)
def test_deft_16_is_the_upper_half(first: float, second: float) -> None:
    pack, unpack = Counted(), Counted()
    word = packed_16(pack, bits(first), bits(second))
    found = value(unpack.left(word, 16)), value(unpack.select(word, 0xFFFF0000))
    assert [abs(a - b) <= 2**-7 * abs(b) for a, b in zip(found, (first, second), strict=True)] == [True, True]
    assert (pack.cost, unpack.cost) == (FORMATS["deft-16"].pack, FORMATS["deft-16"].unpack)


@given(VALUES, VALUES)
def test_deft_16q_leaves_the_neighbour_s_bits(first: float, second: float) -> None:
    pack, unpack = Counted(), Counted()
    word = packed_16(pack, bits(first), bits(second))
    lower = unpack.left(word, 16)
    assert (word, reference.dfu_cvt_16(word)) == (reference.fuse_16(bits(first), bits(second)), (lower, word))
    found = value(lower), value(word)
    assert abs(found[0] - first) <= 2**-7 * abs(first)
    assert abs(found[1] - second) <= 2**-7 * abs(second)
    assert (pack.cost, unpack.cost) == (FORMATS["deft-16q"].pack, FORMATS["deft-16q"].unpack)


@given(st.lists(VALUES, min_size=4, max_size=4))
def test_eight_bits_are_a_sign_an_exponent_and_a_mantissa(values: list[float]) -> None:
    pack, unpack = Counted(), Counted()
    word = packed_8(pack, [bits(each) for each in values])
    found = unpacked_8(unpack, word)
    assert word == reference.fuse_8([bits(each) for each in values], EXPONENT)
    assert tuple(found) == reference.dfu_cvt_8(word, EXPONENT)
    for ours, exact in zip(map(value, found), values, strict=True):
        assert abs(ours - exact) <= 2.0 ** -(7 - EXPONENT) * abs(exact)
    assert unpack.cost == FORMATS["8-bit"].unpack
    assert pack.cost.half == FORMATS["8-bit"].pack.half
    assert pack.cost.full == FORMATS["8-bit"].pack.full


@pytest.mark.parametrize(("conversion", "slots"), [("deft-16", 3), ("deft-16q", 2), ("ieee-half", 8), ("8-bit", 22)])
def test_slow_instructions_keep_their_unit(conversion: Conversion, slots: int) -> None:
    cost = FORMATS[conversion].unpack
    assert cost.slots("serial") == slots
    assert cost.slots("overlapped") == cost.instructions
    assert slots == cost.full + HALF_RATE * cost.half + QUARTER_RATE * cost.quarter


def test_the_unit_takes_a_word_apart_in_one_instruction() -> None:
    assert {FORMATS[name].unpack for name in ("dfu_cvt_16", "dfu_cvt_8")} == {Cost(full=1)}
    assert FORMATS["dfu_cvt_16"].pack == FORMATS["deft-16q"].pack
    assert FORMATS["dfu_cvt_8"].pack == FORMATS["8-bit"].pack
    assert [FORMATS[name].values for name in CONVERSIONS] == [1, 2, 2, 2, 4, 2, 4]

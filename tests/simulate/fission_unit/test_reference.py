"""What the unit answers, against the definition of its formats in arithmetic."""

from math import frexp, inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.simulate.fission_unit import reference


def number(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))


def bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def defined(byte: int, exponent: int) -> float:
    """Sign, exponent and fraction, read as the published figure shows them."""
    mantissa = 7 - exponent
    field, fraction = byte % 128 >> mantissa, byte % (1 << mantissa)
    power = field - (2 ** (exponent - 1) - 1)
    return (-1.0) ** (byte // 128) * 2.0**power * (1 + fraction / 2**mantissa)


@pytest.mark.parametrize("exponent", range(1, 8))
def test_every_byte_is_what_its_format_says(exponent: int) -> None:
    for first in range(0, 256, 4):
        codes = [first, first + 1, first + 2, first + 3]
        word = int.from_bytes(bytes(codes), "little")
        found = [number(value) for value in reference.dfu_cvt_8(word, exponent)]
        assert found == [defined(code, exponent) for code in codes]


@pytest.mark.parametrize("exponent", range(1, 8))
def test_every_byte_survives_a_round_trip(exponent: int) -> None:
    for first in range(0, 256, 4):
        word = int.from_bytes(bytes(range(first, first + 4)), "little")
        assert reference.fuse_8(reference.dfu_cvt_8(word, exponent), exponent) == word


@given(st.integers(1, 7), st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_what_is_fused_is_cut_off_or_an_end_of_the_range(exponent: int, value: float) -> None:
    ours = number(reference.dfu_cvt_8(reference.fuse_8([bits(value)] * 4, exponent), exponent)[0])
    codes = sorted(defined(code, exponent) for code in range(128))
    below = [code for code in codes if code <= abs(value)]
    assert abs(ours) == (below[-1] if below else codes[0])
    assert np.signbit(ours) == np.signbit(np.float32(value))


@given(st.floats(2.0**-100, 2.0**100, width=32), st.floats(-(2.0**100), 2.0**100, width=32))
def test_deft_16q_is_within_a_unit_of_its_seven_bits(high: float, low: float) -> None:
    lower, upper = map(number, reference.dfu_cvt_16(reference.fuse_16(bits(low), bits(high))))
    assert abs(upper - high) < 2.0 ** (frexp(high)[1] - 8)
    assert lower == number(bits(low) & 0xFFFF0000)


def test_a_zero_behind_a_value_reads_as_a_tiny_one() -> None:
    """The published shortcut: the neighbour's bits stay."""
    lower, upper = map(number, reference.dfu_cvt_16(reference.fuse_16(bits(1.5), bits(0.0))))
    assert lower == 1.5 and 0 < upper < 2.0**-126
    assert number(reference.dfu_cvt_16(reference.fuse_16(bits(1.0), bits(inf)))[1]) != inf

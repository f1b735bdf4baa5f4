"""Reference of the unit's instructions and of packing, one word at a time on fp32 bits."""

from __future__ import annotations

from collections.abc import Sequence

SIGN, UPPER, WORD = 0x80000000, 0xFFFF0000, 0xFFFFFFFF
MANTISSA = 23
FP32_BIAS = 127


def dfu_cvt_16(word: int) -> tuple[int, int]:
    """Deft-16Q: the lower 16 bits shifted up, and the word itself, whose low mantissa bits are the other value's."""
    return word << 16 & WORD, word


def fuse_16(low: int, high: int) -> int:
    """Two values truncated to their upper 16 bits."""
    return high & UPPER | low >> 16


def bias_difference(exponent: int) -> int:
    """Difference between the exponent biases of fp32 and of ``exponent`` bits."""
    return FP32_BIAS - ((1 << exponent - 1) - 1)


def dfu_cvt_8(word: int, exponent: int) -> tuple[int, int, int, int]:
    """Four values of a sign, ``exponent`` bits and 7 - ``exponent`` of the mantissa, the lowest byte first.

    As published (DeftNN, figure 8), the bias difference is added to every exponent field: a field of 0 is not zero
    or subnormal, but the smallest power of two.
    """
    first, second, third, fourth = (_widened(word >> place & 0xFF, exponent) for place in (0, 8, 16, 24))
    return first, second, third, fourth


def _widened(byte: int, exponent: int) -> int:
    mantissa = 7 - exponent
    field = (byte >> mantissa & (1 << exponent) - 1) + bias_difference(exponent)
    return (byte & 0x80) << 24 | field << MANTISSA | (byte & (1 << mantissa) - 1) << MANTISSA - mantissa


def fuse_8(values: Sequence[int], exponent: int) -> int:
    """Four values truncated to bytes, the first in the lowest; values out of range are clamped."""
    return sum(_narrowed(value, exponent) << 8 * place for place, value in enumerate(values))


def _narrowed(value: int, exponent: int) -> int:
    mantissa = 7 - exponent
    magnitude = ((value & ~SIGN) >> MANTISSA - mantissa) - (bias_difference(exponent) << mantissa)
    return value >> 24 & 0x80 | min(max(magnitude, 0), 0x7F)

"""Compiled instructions of the unit, over arrays of words; ``reference`` defines their results."""

from typing import no_type_check

import numba

from lamina.simulate.compiled import compiled


@compiled()
@no_type_check
def dfu_cvt_16(words, values):
    """Bits of ``values`` [words, 2] from ``words``."""
    for i in range(len(words)):
        values[i, 0] = words[i] << 16
        values[i, 1] = words[i]


@compiled()
@no_type_check
def fuse_16(values, words):
    """The words of bits [words, 2]."""
    for i in range(len(words)):
        words[i] = values[i, 1] & 0xFFFF0000 | values[i, 0] >> 16


@compiled()
@no_type_check
def dfu_cvt_8(words, exponent, values):
    """Bits of ``values`` [words, 4] from ``words``: exponent and mantissa move together, then the bias is added."""
    bias = (128 - (1 << (exponent - 1))) << 23
    for i in range(len(words)):
        word = numba.int64(words[i])
        for j in range(4):
            top = word << (24 - 8 * j) & 0xFF000000
            magnitude = (top & 0x7F000000) >> (8 - exponent)
            values[i, j] = top & 0x80000000 | magnitude + bias


@compiled()
@no_type_check
def fuse_8(values, exponent, words):
    """The words of bits [words, 4]."""
    shift = 16 + exponent
    bias = (128 - (1 << (exponent - 1))) << 23 >> shift
    for i in range(len(words)):
        word = 0
        for j in range(4):
            value = numba.int64(values[i, j])
            magnitude = min(max(((value & 0x7FFFFFFF) >> shift) - bias, 0), 0x7F)
            word |= (value >> 24 & 0x80 | magnitude) << 8 * j
        words[i] = word

"""Compiled memory: the interface below L2, and loads of table words that no event changes."""

from typing import no_type_check

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from lamina.simulate.compiled import compiled
from lamina.simulate.hierarchy.state import M_READS, M_ROW_HITS, M_TABLE, M_WRITES

WRITE = -1
"""The mark of a write-back; all others are marks of reads."""
POINTER = types.CPointer(types.int64)  # type: ignore[no-untyped-call]
"""Tables are passed as pointers: the reference counting of arrays takes longer than the work."""
BELOW = types.int64(POINTER, types.int64, types.int64, types.int64)
"""The level below L2: (table, now, address, mark) -> tick at which the line returns. A unit between L2 and memory is
another function of this signature."""
DRAM_FIELDS = 16


@intrinsic
@no_type_check
def fixed(context, table, index):
    """An invariant load: a word that no event changes, which the compiler need not reload after stores."""

    def code(context, builder, signature, arguments):
        start, words = arguments
        word = builder.load(builder.gep(start, [builder.sext(words, ir.IntType(64))]))
        word.set_metadata("invariant.load", builder.module.add_metadata([]))
        return word

    return types.int64(table, types.int32), code


@compiled(forceinline=True)
@no_type_check
def split(value, count, shift):
    """Quotient and remainder, by shifts if ``count`` is a power of two."""
    if shift >= 0:
        return value >> shift, value & (count - 1)
    quotient = value // count
    return quotient, value - quotient * count


@compiled(BELOW)
@no_type_check
def dram(m, now, address, mark):
    """Tick at which memory returns a line; ``Dram`` of the reference."""
    p = M_TABLE
    channels, shift, interval = m[p + 1], m[p + 2], m[p + 4]
    m[M_WRITES if mark == WRITE else M_READS] += 1
    unit, channel = split(address >> shift, channels, m[p + 14])
    c = p + DRAM_FIELDS + 6 * channel
    if not m[p]:
        start = max(now, m[c])
        m[c] = start + interval
        return start + m[p + 3]
    row, bank = split(((unit << shift) + (address & ((1 << shift) - 1))) >> m[p + 6], m[p + 5], m[p + 15])
    b = p + DRAM_FIELDS + 6 * channels + 3 * (channel * m[p + 5] + bank)
    start = max(now, m[b])
    if m[b + 1] == row:
        m[M_ROW_HITS] += 1
        command = start
    else:
        if m[b + 1] >= 0:
            start = max(start, m[b + 2] + m[p + 10]) + m[p + 8]
        oldest = c + 2 + m[c + 1]
        latest = c + 2 + (m[c + 1] + 3) % 4
        activate = max(start, m[latest] + m[p + 11], m[oldest] + m[p + 12])
        m[oldest] = activate
        m[c + 1] = (m[c + 1] + 1) % 4
        m[b + 1], m[b + 2] = row, activate
        command = activate + m[p + 7]
    data = max(command + m[p + 9], m[c])
    m[c] = data + interval
    m[b] = command + interval
    return data + interval + m[p + 13]

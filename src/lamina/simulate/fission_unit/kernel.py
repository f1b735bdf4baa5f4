"""A register-tiled matrix product staged through shared memory, as a phase program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import gcd

import numpy as np

from lamina.errors import Fault, SpecError
from lamina.simulate.fission_unit.config import DEPTH, SIDE, Kernel
from lamina.simulate.fission_unit.formats import Cost, Slow
from lamina.simulate.hierarchy import Device, Phase, Program
from lamina.simulate.hierarchy.config import LINE
from lamina.simulate.hierarchy.gemm import PAGE
from lamina.simulate.hierarchy.program import END, LDS, LOAD, STORE, VALU, WAIT, aligned

LANES = 32
WAVES = SIDE * SIDE // LANES
"""Wavefronts per workgroup."""
WORD = 4
WIDEST = 4
"""Words per lane of one load or store instruction."""
OTHER_REGISTERS = 16
"""Addresses, counters, the kernel's arguments."""
OVERHEAD = 4
"""Vector instructions per iteration for pointers and the loop counter."""


@dataclass(frozen=True)
class Pass:
    """Instructions of a wavefront in one loop iteration of ``DEPTH`` values of k. Words are per lane."""

    fma: int
    words_read: int
    """Reads from shared memory: one instruction and one access of all banks each."""
    words_written: int
    unpacked: int
    """Unpacked words: those read from shared memory, or, with off-chip packing, those from device memory."""
    unpack: Cost
    """Cost of unpacking one word."""
    pack: Cost
    """Cost of packing one written word."""
    lines: int
    """Words loaded from device memory."""

    @property
    def shared_bytes(self) -> int:
        """Bytes of all lanes through the shared memory port."""
        return (self.words_read + self.words_written) * LANES * WORD

    @property
    def conversions(self) -> int:
        """Instructions that pack or unpack words."""
        return self.unpacked * self.unpack.instructions + self.words_written * self.pack.instructions

    def converting(self, slow: Slow) -> int:
        """Issue slots of the vector unit in which words are packed or unpacked."""
        return self.unpacked * self.unpack.slots(slow) + self.words_written * self.pack.slots(slow)

    def slots(self, slow: Slow) -> int:
        """Issue slots of the vector unit."""
        return self.fma + OVERHEAD + self.converting(slow)


def one_pass(kernel: Kernel) -> Pass:
    """Instruction counts of an iteration: a step of k reads ``2 tile`` values for ``tile ** 2`` products."""
    t, shared, memory = kernel.tile, kernel.in_shared, kernel.in_memory
    off_chip = kernel.packed == "off-chip"
    staged = 2 * SIDE * t * DEPTH // (WAVES * LANES)  # values per lane
    read = 2 * t * DEPTH // shared
    return Pass(
        fma=t * t * DEPTH,
        words_read=read,
        words_written=staged // shared,
        unpack=kernel.format.unpack,
        unpacked=staged // memory if off_chip else read,
        pack=kernel.format.pack if kernel.packed == "on-chip" else Cost(),
        lines=staged // memory * LANES * WORD // LINE,
    )


def registers(kernel: Kernel) -> int:
    """Registers per thread: its tile of C, words of A and B for two steps, unpacked values, words in flight."""
    t, shared = kernel.tile, kernel.in_shared
    apart = t * shared + shared if shared > 1 else 0  # a column of A, one value of B at a time
    return t * t + 2 * 2 * t + apart + 2 * t // kernel.in_memory + OTHER_REGISTERS


def shared_bytes(kernel: Kernel) -> int:
    """LDS bytes per wavefront: its part of the workgroup's tiles of A and B."""
    return 2 * kernel.side * DEPTH * WORD // kernel.in_shared // WAVES * (2 if kernel.double_buffer else 1)


def tiled_gemm(m: int, n: int, k: int, kernel: Kernel, device: Device) -> Program:
    """C[m, n] = A[m, k] B[k, n], sizes in whole tiles. A and B are in panels of a workgroup's width; C is row-major.

    A workgroup of the program is one wavefront. Eight adjacent ones represent a workgroup: each loads and stores an
    eighth of its data, without barriers between them.

    Raises:
        SpecError: a size is not a positive multiple of its tile.
    """
    side, t, values = kernel.side, kernel.tile, kernel.in_memory
    faults = [
        Fault(f"{name} = {size}: expected a positive multiple of {unit}")
        for name, size, unit in (("m", m, side), ("n", n, side), ("k", k, DEPTH))
        if size < 1 or size % unit
    ]
    if faults:
        raise SpecError("tiled_gemm", faults)
    trips, rows, panels = k // DEPTH, n // side, m // side
    columns = panels * WAVES
    pace = side * DEPTH * WORD // values
    panel, pitch, own = _spread(trips * pace, device), _spread(WORD * n, device), pace // WAVES
    a = aligned(rows * panel, PAGE)
    c = a + aligned(panels * panel, PAGE)
    # The program's address range assumes every index at every column: one panel beyond the last of A.
    arguments = c + aligned(max(m * pitch, panel), PAGE)
    back = panel // WAVES - own  # a grid column advances an eighth of a panel, a wavefront its part of a tile
    lines, instructions = own // LINE, -(-own // (LANES * WORD * WIDEST))
    load_a = Phase(
        LOAD, instructions, base=a - (WAVES - 1) * back, per_column=panel // WAVES, per_trip=pace,
        rows=1, pitch=back, lines=lines, gather=0,
    )  # fmt: skip
    load_b = Phase(
        LOAD, instructions, per_row=panel, per_trip=pace, rows=1, pitch=own, lines=lines, gather=1
    )  # fmt: skip
    before = (Phase(VALU, 40, scalar=30), Phase(LOAD, 1, base=arguments, rows=1, lines=1), Phase(WAIT, 1))
    loop = (Phase(VALU, OVERHEAD, scalar=2), load_a, load_b, *_body(kernel))
    after = (*_stores(kernel, c, pitch), Phase(WAIT, 1), Phase(END, 1))
    each = one_pass(kernel)
    return Program(
        name=f"tiled-gemm[{m},{n},{k},{t}x{t},{kernel.conversion},{kernel.packed}]",
        before=before,
        loop=loop,
        after=after,
        rows=rows,
        columns=columns,
        trips=np.full(rows * columns, trips, dtype=np.int64),
        bytes=arguments + PAGE,
        instructions_per_workgroup=_instructions((*before, *after)),
        instructions_per_trip=_instructions(loop) - each.slots(kernel.slow) + each.fma + OVERHEAD + each.conversions,
        registers=registers(kernel),
        lds_bytes=shared_bytes(kernel),
        indices=np.repeat([(WAVES - 1 - wave, wave) for wave in range(WAVES)], trips, axis=0).astype(np.uint16),
        gathers=np.arange(rows * columns) % WAVES * trips,
    )


def _body(kernel: Kernel) -> tuple[Phase, ...]:
    """An iteration after its loads: the products of a tile, and the stores of the next tile to shared memory."""
    each, slow = one_pass(kernel), kernel.slow
    staged = each.words_written * each.pack.slots(slow)
    apart = each.unpack.slots(slow) * each.unpacked
    if kernel.packed == "off-chip":
        staged, apart = apart, 0
    steps = DEPTH // kernel.in_shared
    products = (
        Phase(LDS, each.words_read // steps),
        Phase(VALU, (each.fma + apart) // steps),
    ) * steps  # fmt: skip
    arrive = (
        Phase(WAIT, 1, scalar=1),
        *([Phase(VALU, staged)] if staged else []),
        Phase(LDS, each.words_written, scalar=1),
    )
    return (*products, *arrive) if kernel.double_buffer else (*arrive, *products)


def _stores(kernel: Kernel, c: int, pitch: int) -> Iterator[Phase]:
    """A wavefront's eighth of a tile of C, in four parts."""
    t, parts = kernel.tile, 4
    rows = kernel.side // WAVES
    for part in range(parts):
        high = rows // parts
        yield Phase(VALU, t * t // parts)
        yield Phase(
            STORE, -(-high * t * LINE // (LANES * WORD * WIDEST)), base=c + part * high * pitch,
            per_row=SIDE * t * WORD, per_column=rows * pitch, rows=high, pitch=pitch, lines=t,
        )  # fmt: skip


def _spread(size: int, device: Device) -> int:
    """Pitch in bytes of panels and rows of C, chosen so that adjacent ones start on different channels and banks.

    The GPU hashes addresses over channels and banks, the device model does not: panels at a multiple of all of them
    would conflict.
    """
    dram = device.dram
    for stripes in count(-(-size // dram.interleave)):
        rows = stripes * dram.interleave // (dram.channels * dram.row_bytes)
        if gcd(stripes, dram.channels * device.l2.banks) == 1 and (not rows or gcd(rows, dram.banks) == 1):
            return stripes * dram.interleave
    raise AssertionError("one more than a multiple of both is a stripe's distance")


def _instructions(phases: tuple[Phase, ...]) -> int:
    return sum(phase.count + phase.scalar for phase in phases)

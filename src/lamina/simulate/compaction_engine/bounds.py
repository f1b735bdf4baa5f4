"""Upper bounds of the speedup: roofline times of a product with zeros, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lamina.simulate.compaction_engine.config import VALUES_PER_LINE
from lamina.simulate.hierarchy import Device
from lamina.simulate.hierarchy.config import LINE
from lamina.simulate.hierarchy.timing import TICKS, dram_timing_of
from lamina.simulate.workloads import ConvolutionGemm

WAVE = 64
NARROW = 4
"""Bytes of a delivered entry: fp16 and a 16-bit row."""


@dataclass(frozen=True)
class Bounds:
    """Minimum cycles of a product, without any stalls, from an L2 without its operands.

    ``dense``: every value multiplied, every byte of A and B read once. ``skipping``: only non-zeros multiplied, lines
    of only zeros not read. ``compact``: as ``skipping``, with B compacted in memory, which the engine does not do.
    Bytes of C are left out: a kernel waits until L2 has its stores, not until memory has.
    """

    density: float
    dense: float
    skipping: float
    compact: float

    @property
    def mac_skip(self) -> float:
        """Speedup of an ideal kernel if its time depended on multiplications only."""
        return 1 / self.density if self.density else math.inf

    @property
    def roofline(self) -> float:
        """Speedup of an ideal kernel: roofline time of the dense product over that of the sparse one."""
        return _ratio(self.dense, self.skipping)

    @property
    def roofline_compact(self) -> float:
        return _ratio(self.dense, self.compact)

    def dense_fraction(self, cycles: float) -> float:
        """Fraction of the roofline that a dense kernel of so many cycles reaches."""
        return self.dense / cycles

    def speedup(self, cycles: float) -> float:
        """Maximum speedup of any engine over a dense kernel of so many cycles.

        The product of ``roofline`` and the inverse of ``dense_fraction``: a sparse kernel also gains what the dense
        kernel loses to stalls and to idle compute units, so ``roofline`` alone does not bound a measured speedup.
        """
        return _ratio(cycles, self.skipping)


def _ratio(cycles: float, least: float) -> float:
    return cycles / least if least else math.inf


def peak(device: Device) -> float:
    """FLOPs per cycle: a vector instruction has 64 lanes with a multiply-add each."""
    return device.cu.count * device.cu.simds * WAVE * 2 / device.cu.valu_busy


def bandwidth(device: Device) -> float:
    """DRAM bytes per cycle."""
    return device.dram.channels * LINE * TICKS / dram_timing_of(device).interval


def bounds(layer: ConvolutionGemm, device: Device, density: float, line_density: float) -> Bounds:
    """The bounds of a layer whose B has fractions ``density`` of values and ``line_density`` of lines non-zero."""
    a, b, _ = layer.bytes
    rows = density * a  # a column of average density selects as many rows of A, all columns together at least these
    work, rate = layer.operations / peak(device), bandwidth(device)
    return Bounds(
        density,
        dense=max(work, (a + b) / rate),
        skipping=max(density * work, (rows + line_density * b) / rate),
        compact=max(density * work, (rows + density * b * NARROW * VALUES_PER_LINE / LINE) / rate),
    )

"""Upper bounds of the speedup: roofline times of a product with zeros, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.simulate.compaction_engine.config import VALUES_PER_LINE
from lamina.simulate.hierarchy import Device
from lamina.simulate.hierarchy.config import LINE
from lamina.simulate.workloads import ConvolutionGemm

WAVE = 64
NARROW = 4
"""Bytes of a delivered entry: fp16 and a 16-bit row."""


@dataclass(frozen=True)
class Bounds:
    """Minimum cycles of a product, without any stalls.

    ``dense``: every value multiplied, every byte moved once. ``skipping``: only non-zeros multiplied, lines of only
    zeros not read. ``compact``: as ``skipping``, with B stored compacted in memory, which the engine does not do.
    """

    density: float
    dense: float
    skipping: float
    compact: float

    @property
    def mac_skip(self) -> float:
        """Speedup if time depended on multiplications only."""
        return 1 / self.density if self.density else float("inf")

    @property
    def roofline(self) -> float:
        """Roofline speedup of the sparse product over the dense one."""
        return self.dense / self.skipping

    @property
    def roofline_compact(self) -> float:
        return self.dense / self.compact


def peak(device: Device) -> float:
    """FLOPs per cycle: a vector instruction has 64 lanes with a multiply-add each."""
    return device.cu.count * device.cu.simds * WAVE * 2 / device.cu.valu_busy


def bandwidth(device: Device) -> float:
    """DRAM bytes per cycle."""
    dram = device.dram
    if dram.mode == "ideal":
        return dram.channels * LINE / dram.cycles_per_line
    return dram.channels * LINE * (1 - dram.refresh) / (dram.burst_ns * device.clock_ghz)


def bounds(layer: ConvolutionGemm, device: Device, density: float, line_density: float) -> Bounds:
    """The bounds of a layer whose B has fractions ``density`` of values and ``line_density`` of lines non-zero."""
    a, b, c = layer.bytes
    work, rate = layer.operations / peak(device), bandwidth(device)
    return Bounds(
        density,
        dense=max(work, (a + b + c) / rate),
        skipping=max(density * work, (a + line_density * b + c) / rate),
        compact=max(density * work, (a + density * b * NARROW * VALUES_PER_LINE / LINE + c) / rate),
    )

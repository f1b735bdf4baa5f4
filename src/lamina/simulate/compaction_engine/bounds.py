"""What no engine can beat: the best times of a product with zeros, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.simulate.compaction_engine.config import LANES
from lamina.simulate.hierarchy import Device
from lamina.simulate.hierarchy.config import LINE
from lamina.simulate.workloads import ConvolutionGemm

WAVE = 64
NARROW = 4
"""Bytes of a delivered entry: fp16 and a 16-bit row."""


@dataclass(frozen=True)
class Bounds:
    """Cycles that a product takes at least, when nothing waits.

    ``dense``: every value multiplied, every byte moved once. ``skipping``: only what is not zero multiplied, lines of
    zeros alone not read. ``compact``: the same with B stored compacted in memory, which the engine does not do.
    """

    density: float
    dense: float
    skipping: float
    compact: float

    @property
    def mac_skip(self) -> float:
        """Gain if time were multiplications alone."""
        return 1 / self.density if self.density else float("inf")

    @property
    def roofline(self) -> float:
        """Gain of a perfect sparse product over a perfect dense one."""
        return self.dense / self.skipping

    @property
    def roofline_compact(self) -> float:
        return self.dense / self.compact


def peak(device: Device) -> float:
    """Multiplications and additions a cycle: a vector instruction is 64 lanes of both."""
    return device.cu.count * device.cu.simds * WAVE * 2 / device.cu.valu_busy


def bandwidth(device: Device) -> float:
    """Bytes of memory a cycle."""
    dram = device.dram
    if dram.mode == "ideal":
        return dram.channels * LINE / dram.cycles_per_line
    return dram.channels * LINE * (1 - dram.refresh) / (dram.burst_ns * device.clock_ghz)


def bounds(layer: ConvolutionGemm, device: Device, density: float, line_density: float) -> Bounds:
    """The bounds of a layer whose B has a share ``density`` of values, and ``line_density`` of lines, not zero."""
    a, b, c = layer.bytes
    work, rate = layer.operations / peak(device), bandwidth(device)
    return Bounds(
        density,
        dense=max(work, (a + b + c) / rate),
        skipping=max(density * work, (a + line_density * b + c) / rate),
        compact=max(density * work, (a + density * b * NARROW * LANES / LINE + c) / rate),
    )

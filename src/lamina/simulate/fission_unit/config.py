"""Options of the simulated kernel and of the simulation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lamina.simulate.fission_unit.formats import FORMATS, Conversion, Format, Slow
from lamina.simulate.hierarchy import Device
from lamina.simulate.hierarchy.program import aligned
from lamina.simulate.hierarchy.unit import Impl
from lamina.simulate.jobs import Options

SIDE = 16
"""A workgroup is 16 x 16 threads."""
DEPTH = 16
"""Values of k per loop iteration (stage)."""

Packed = Literal["on-chip", "everywhere", "off-chip"]


class Kernel(Options):
    """The kernel: a thread computes ``tile`` x ``tile`` of C, a workgroup 16 times that along each side."""

    tile: Literal[4, 6, 8] = 6
    conversion: Conversion = "dfu_cvt_16"
    packed: Packed = "on-chip"
    """Where values are packed: ``on-chip`` only in shared memory, packed on the way there (as published);
    ``everywhere`` also in device memory, packed beforehand; ``off-chip`` only in device memory, unpacked on the way to
    shared memory."""
    double_buffer: Annotated[bool, Field(strict=True)] = True
    """Double buffering: request the next tile before computing with this one; doubles the shared memory."""
    slow: Slow = "serial"
    """Cost of instructions below full rate."""

    @property
    def format(self) -> Format:
        return FORMATS[self.conversion]

    @property
    def in_shared(self) -> int:
        """Values per word in shared memory."""
        return 1 if self.packed == "off-chip" else self.format.values

    @property
    def in_memory(self) -> int:
        """Values per word in device memory."""
        return 1 if self.packed == "on-chip" else self.format.values

    @property
    def side(self) -> int:
        """Rows, and columns, of C that a workgroup computes."""
        return SIDE * self.tile

    def padded(self, m: int, n: int, k: int) -> tuple[int, int, int]:
        """Sizes rounded up to whole tiles."""
        return aligned(m, self.side), aligned(n, self.side), aligned(k, DEPTH)


class FissionUnit(Kernel):
    """Options of the simulation of a layer."""

    pipelined: Annotated[bool, Field(strict=True)] = True
    """A wavefront's multiplications and shared memory reads do not wait for each other, as in a kernel that reads the
    values of the next step while it multiplies: instruction latencies are hidden."""
    sampling: Annotated[bool, Field(strict=True)] = False
    """Simulate a sample of the workgroups and extrapolate."""
    sets: Annotated[int, Field(ge=4, le=10**6, strict=True)] = 12
    """Size of the sample, in multiples of the wavefronts resident on the device."""
    impl: Impl = "core"
    keep: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of k that synapse vector elimination keeps; reorganizing the kept inputs is not simulated."""

    def kept(self, k: int) -> int:
        """The length of the summed axis after elimination."""
        return max(1, round(self.keep * k))

    def on(self, device: Device) -> Device:
        """The device with the latencies that apply to this kernel."""
        if not self.pipelined:
            return device
        return device.changed({"cu.valu_cycles": device.cu.valu_busy, "cu.lds_cycles": device.cu.lds_busy})

"""The kernel that is simulated and how closely: what can be set, with its defaults."""

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
"""Values of k that a pass of the loop stages."""

Packed = Literal["on-chip", "everywhere", "off-chip"]


class Kernel(Options):
    """The kernel: a thread computes ``tile`` x ``tile`` of C, a workgroup sixteen times that on each side."""

    tile: Literal[4, 6, 8] = 6
    conversion: Conversion = "dfu_cvt_16"
    packed: Packed = "on-chip"
    """Where words hold more than one value: ``on-chip`` in shared memory alone, packed on their way there (as
    published); ``everywhere`` in device memory too, packed beforehand; ``off-chip`` in device memory alone, taken
    apart on their way into shared memory."""
    double_buffer: Annotated[bool, Field(strict=True)] = True
    """Ask for the next tile before computing with this one: twice the shared memory."""
    slow: Slow = "serial"
    """What instructions below full rate cost."""

    @property
    def format(self) -> Format:
        return FORMATS[self.conversion]

    @property
    def in_shared(self) -> int:
        """Values of a word in shared memory."""
        return 1 if self.packed == "off-chip" else self.format.values

    @property
    def in_memory(self) -> int:
        """Values of a word in device memory."""
        return 1 if self.packed == "on-chip" else self.format.values

    @property
    def side(self) -> int:
        """Rows, and columns, of C that a workgroup computes."""
        return SIDE * self.tile

    def padded(self, m: int, n: int, k: int) -> tuple[int, int, int]:
        """Sizes in whole tiles."""
        return aligned(m, self.side), aligned(n, self.side), aligned(k, DEPTH)


class FissionUnit(Kernel):
    """How a layer is simulated: its kernel, and how closely."""

    pipelined: Annotated[bool, Field(strict=True)] = True
    """A wave's products, and its reads of shared memory, do not wait for each other, as in a kernel that reads the
    next step's values while it multiplies: the device's latencies between instructions of a wave are not met."""
    sampling: Annotated[bool, Field(strict=True)] = False
    """Simulate a part of the workgroups and extrapolate."""
    sets: Annotated[int, Field(ge=4, le=10**6, strict=True)] = 12
    """How many times the waves that the device holds sampling simulates."""
    impl: Impl = "core"

    def on(self, device: Device) -> Device:
        """The device as this kernel meets it."""
        if not self.pipelined:
            return device
        return device.changed({"cu.valu_cycles": device.cu.valu_busy, "cu.lds_cycles": device.cu.lds_busy})

"""How busy a product keeps on-chip memory, off-chip memory and functional units: DeftNN, figures 2, 11 (c), 12 (c)."""

from __future__ import annotations

from lamina.simulate.fission_unit.config import Kernel
from lamina.simulate.fission_unit.kernel import Pass
from lamina.simulate.hierarchy import Device
from lamina.simulate.hierarchy.config import LINE
from lamina.simulate.hierarchy.timing import TICKS, dram_timing_of


def use(each: Pass, passes: int, kernel: Kernel, device: Device, cycles: int, dram_bytes: float) -> dict[str, float]:
    """Fractions of a product's time, averaged over the device.

    ``on_chip_use``: the port of shared memory. ``off_chip_use``: the channels of device memory. ``arithmetic_use``:
    multiplications on the vector units. ``conversion_use``: packing and unpacking on them.

    Args:
        each: instructions of a wavefront in an iteration.
        passes: iterations of all wavefronts.
        kernel: the kernel's options.
        device: where it runs.
        cycles: time of the product, with the launch.
        dram_bytes: bytes moved to and from device memory.
    """
    cu, timing = device.cu, dram_timing_of(device)
    shared = (each.words_read + each.words_written) * cu.lds_busy / cu.count
    slot = cu.valu_busy / (cu.count * cu.simds)
    return {
        "on_chip_use": passes * shared / cycles,
        "off_chip_use": dram_bytes / LINE * timing.interval / TICKS / timing.channels / cycles,
        "arithmetic_use": passes * each.fma * slot / cycles,
        "conversion_use": passes * each.converting(kernel.slow) * slot / cycles,
    }

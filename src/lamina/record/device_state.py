"""What a device was doing at one moment: clocks, power, heat, memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceState:
    """One reading of a GPU's sensors; a sensor the driver does not offer is None."""

    sm_mhz: int | None
    mem_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    throttle: str | None  # why the clocks are held down, comma-separated; '' when nothing holds them
    memory_used_bytes: int | None
    memory_total_bytes: int | None

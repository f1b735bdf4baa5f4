"""GPU sensors and settings through NVML. Values that cannot be read are None; nothing here raises."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from lamina.record.device_state import DeviceState

_log = logging.getLogger(__name__)
_RECENT_S = 1.0  # how far back the utilization of a process counts

# Bits of nvmlClocksEventReasons, from nvml.h; the values are ABI, the names of the constants changed over time.
_REASONS = {
    0x001: "idle",
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "thermal slowdown (software)",
    0x040: "thermal slowdown (hardware)",
    0x080: "power brake",
    0x100: "display clocks",
}


@dataclass(frozen=True)
class Settings:
    """The settings of a GPU. They are only read, never changed."""

    driver: str | None
    mig: bool | None
    ecc: bool | None
    persistence: bool | None
    power_limit_w: float | None


def sample(device: torch.device) -> DeviceState | None:
    """The current sensor readings of a CUDA device; None without NVML or without a GPU."""
    nvml, card = _open(device)
    if card is None:
        return None
    memory = _query(nvml, nvml.nvmlDeviceGetMemoryInfo, card)
    reasons = _query(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, card)
    power_mw = _query(nvml, nvml.nvmlDeviceGetPowerUsage, card)
    return DeviceState(
        sm_mhz=_query(nvml, nvml.nvmlDeviceGetClockInfo, card, nvml.NVML_CLOCK_SM),
        mem_mhz=_query(nvml, nvml.nvmlDeviceGetClockInfo, card, nvml.NVML_CLOCK_MEM),
        power_w=None if power_mw is None else power_mw / 1000,
        temperature_c=_query(nvml, nvml.nvmlDeviceGetTemperature, card, nvml.NVML_TEMPERATURE_GPU),
        throttle=None if reasons is None else throttle_text(reasons),
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_total_bytes=None if memory is None else int(memory.total),
    )


def settings(device: torch.device) -> Settings | None:
    """The driver version and settings of a CUDA device; None without NVML or without a GPU."""
    nvml, card = _open(device)
    if card is None:
        return None
    mig = _query(nvml, nvml.nvmlDeviceGetMigMode, card)
    ecc = _query(nvml, nvml.nvmlDeviceGetEccMode, card)
    persistence = _query(nvml, nvml.nvmlDeviceGetPersistenceMode, card)
    limit_mw = _query(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, card)
    return Settings(
        driver=_query(nvml, nvml.nvmlSystemGetDriverVersion),
        mig=None if mig is None else bool(mig[0]),
        ecc=None if ecc is None else bool(ecc[0]),
        persistence=None if persistence is None else bool(persistence),
        power_limit_w=None if limit_mw is None else limit_mw / 1000,
    )


def busy_percent(device: torch.device) -> int | None:
    """Utilization of a CUDA device by all processes over the last second, in percent; None if it cannot be read."""
    nvml, card = _open(device)
    rates = None if card is None else _query(nvml, nvml.nvmlDeviceGetUtilizationRates, card)
    return None if rates is None else int(rates.gpu)


def others_percent(device: torch.device) -> int | None:
    """Utilization of a CUDA device's multiprocessors by other processes, in percent; None if it cannot be read.

    In a container NVML may give process ids of the host. Where this process is not among them, it cannot be told from
    others.
    """
    nvml, card = _open(device)
    running = None if card is None else _query(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, card)
    if not running or os.getpid() not in {one.pid for one in running}:
        return None
    since_us = int((time.time() - _RECENT_S) * 1e6)
    used = _query(nvml, nvml.nvmlDeviceGetProcessUtilization, card, since_us) or ()
    latest = {one.pid: one.smUtil for one in sorted(used, key=lambda one: one.timeStamp)}
    return sum(int(percent) for pid, percent in latest.items() if pid != os.getpid())


def energy_mj(device: torch.device) -> int | None:
    """Energy that a CUDA device has used since its driver was loaded, in millijoules; None if it cannot be read."""
    nvml, card = _open(device)
    used = None if card is None else _query(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, card)
    return None if used is None else int(used)


def throttle_text(reasons: int) -> str:
    """The names of the set bits of NVML's clock event reasons; an unknown bit is shown as its value."""
    bits = (1 << shift for shift in range(reasons.bit_length()) if reasons >> shift & 1)
    return ", ".join(_REASONS.get(bit, f"reason {bit:#x}") for bit in bits)


def _open(device: torch.device) -> tuple[Any, Any]:
    """The library and the handle of the GPU, or None."""
    nvml = _library() if device.type == "cuda" else None
    if nvml is None:
        return None, None
    # CUDA_VISIBLE_DEVICES renumbers CUDA devices but not NVML's: only the UUID identifies a GPU in both.
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    full = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    return nvml, _query(nvml, nvml.nvmlDeviceGetHandleByUUID, full)


@cache
def _library() -> Any | None:
    """pynvml, initialized once for the life of the process."""
    try:
        import pynvml
    except ImportError:
        _log.info("no clocks, power or temperature: pynvml is not installed (pip install nvidia-ml-py)")
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        _log.info("no clocks, power or temperature: NVML reports %s", error)
        return None
    return pynvml


def _query(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any | None:
    """The result, or None if this GPU, driver or virtual machine does not support the query."""
    try:
        return function(*arguments)
    except nvml.NVMLError as error:
        _log.debug("%s: %s", getattr(function, "__name__", function), error)
        return None

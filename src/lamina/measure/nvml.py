"""The GPU's sensors and settings through NVML. Nothing here is an error: what cannot be read is None."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from lamina.record.device_state import DeviceState

_log = logging.getLogger(__name__)

# Bits of nvmlClocksEventReasons, from nvml.h; the numbers are ABI, the constants' names changed over time.
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
    """How the card is set up; only read here, never changed."""

    driver: str | None
    mig: bool | None
    ecc: bool | None
    persistence: bool | None
    power_limit_w: float | None


def sample(device: torch.device) -> DeviceState | None:
    """The sensors of a CUDA device now; None without NVML or without a GPU."""
    nvml, card = _open(device)
    if card is None:
        return None
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, card)
    reasons = _ask(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, card)
    power_mw = _ask(nvml, nvml.nvmlDeviceGetPowerUsage, card)
    return DeviceState(
        sm_mhz=_ask(nvml, nvml.nvmlDeviceGetClockInfo, card, nvml.NVML_CLOCK_SM),
        mem_mhz=_ask(nvml, nvml.nvmlDeviceGetClockInfo, card, nvml.NVML_CLOCK_MEM),
        power_w=None if power_mw is None else power_mw / 1000,
        temperature_c=_ask(nvml, nvml.nvmlDeviceGetTemperature, card, nvml.NVML_TEMPERATURE_GPU),
        throttle=None if reasons is None else throttle_text(reasons),
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_total_bytes=None if memory is None else int(memory.total),
    )


def settings(device: torch.device) -> Settings | None:
    """Driver and card settings of a CUDA device; None without NVML or without a GPU."""
    nvml, card = _open(device)
    if card is None:
        return None
    mig = _ask(nvml, nvml.nvmlDeviceGetMigMode, card)
    ecc = _ask(nvml, nvml.nvmlDeviceGetEccMode, card)
    persistence = _ask(nvml, nvml.nvmlDeviceGetPersistenceMode, card)
    limit_mw = _ask(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, card)
    return Settings(
        driver=_ask(nvml, nvml.nvmlSystemGetDriverVersion),
        mig=None if mig is None else bool(mig[0]),
        ecc=None if ecc is None else bool(ecc[0]),
        persistence=None if persistence is None else bool(persistence),
        power_limit_w=None if limit_mw is None else limit_mw / 1000,
    )


def throttle_text(reasons: int) -> str:
    """Name the set bits of NVML's clock event reasons; an unknown bit is named by its number."""
    bits = (1 << shift for shift in range(reasons.bit_length()) if reasons >> shift & 1)
    return ", ".join(_REASONS.get(bit, f"reason {bit:#x}") for bit in bits)


def _open(device: torch.device) -> tuple[Any, Any]:
    """The library and the card's handle; the handle is None if there is none."""
    nvml = _library() if device.type == "cuda" else None
    if nvml is None:
        return None, None
    # CUDA_VISIBLE_DEVICES renumbers CUDA devices but not NVML's: only the UUID means the same card in both.
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    full = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    return nvml, _ask(nvml, nvml.nvmlDeviceGetHandleByUUID, full)


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
        _log.info("no clocks, power or temperature: NVML says %s", error)
        return None
    return pynvml


def _ask(nvml: Any, question: Callable[..., Any], *arguments: Any) -> Any | None:
    """The answer, or None where this card, driver or virtual machine does not offer it."""
    try:
        return question(*arguments)
    except nvml.NVMLError as error:
        _log.debug("%s: %s", getattr(question, "__name__", question), error)
        return None

"""GPU warm-up until the SM clock is stable, so that the first layer is not timed at an idle clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from lamina.measure import nvml
from lamina.measure.device import resolve
from lamina.record.device_state import DeviceState

_log = logging.getLogger(__name__)
_WINDOW = 5  # readings that must agree
_TOLERANCE = 0.01


@dataclass(frozen=True)
class Settling:
    """Result of the warm-up: its readings in order, and whether the SM clock became stable."""

    readings: tuple[DeviceState, ...]
    settled: bool
    seconds: float


def settle(
    device: torch.device | str,
    *,
    limit_s: float = 5.0,
    interval_s: float = 0.05,
    busy: Callable[[], object] | None = None,
    read: Callable[[torch.device], DeviceState | None] = nvml.sample,
    now: Callable[[], float] = time.perf_counter,
) -> Settling:
    """Keep the device busy until its last five SM clock readings agree within 1 %, or until `limit_s`.

    `busy` must be synchronous; the default is a matrix product. Without NVML, the warm-up lasts `limit_s` and has no
    readings. On the CPU it does nothing.
    """
    device = resolve(device)
    if device.type == "cpu":
        return Settling((), True, 0.0)
    busy = busy or _matrix_product(device)
    readings: list[DeviceState] = []
    start = last = now()
    while now() - start < limit_s:
        busy()
        if now() - last < interval_s:
            continue
        last = now()
        reading = read(device)
        if reading is not None:
            readings.append(reading)
        if agree([state.sm_mhz for state in readings]):
            return Settling(tuple(readings), True, now() - start)
    _log.warning("the SM clock of %s did not become stable within %g s", device, limit_s)
    return Settling(tuple(readings), False, now() - start)


def agree(clocks_mhz: Sequence[int | None]) -> bool:
    """Whether the last five readings are present and within 1 % of the highest of them."""
    last = [clock for clock in clocks_mhz[-_WINDOW:] if clock is not None]
    return len(last) == _WINDOW and max(last) - min(last) <= _TOLERANCE * max(last)


def _matrix_product(device: torch.device) -> Callable[[], None]:
    a, b = (torch.randn(4096, 4096, device=device, dtype=torch.float16) for _ in range(2))
    out = torch.empty_like(a)

    def busy() -> None:
        for _ in range(10):
            torch.mm(a, b, out=out)
        torch.cuda.synchronize(device)

    return busy

"""Energy of a callable on a GPU, from NVML's energy counter."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from lamina.measure.nvml import energy_mj
from lamina.measure.turns import alone

_SECONDS = 0.5  # the counter advances every 20 to 100 ms


def energy_j(
    device: torch.device,
    fn: Callable[[], object],
    *,
    seconds: float = _SECONDS,
    counter: Callable[[torch.device], int | None] = energy_mj,
) -> float | None:
    """Joules per call of a callable, idle power of the device included, over calls that last ``seconds``.

    ``None`` on a CPU, and where NVML has no energy counter.
    """
    if counter(device) is None:
        return None
    with alone():
        _wait(device)
        before, begun, calls = counter(device), time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            fn()
            calls += 1
            _wait(device)
        after = counter(device)
    return None if before is None or after is None else (after - before) / 1000 / calls


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

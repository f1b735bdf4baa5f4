"""Energy of a callable on a GPU, from NVML's energy counter."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from lamina.errors import UnsupportedError
from lamina.measure.clocks.graph import GraphClock
from lamina.measure.nvml import energy_mj

_SECONDS = 0.5  # the counter advances every 20 to 100 ms
_STILL_S = 0.5  # a counter that does not advance for so long while the device works does not count
_POLL_S = 0.005  # how long the device works between two readings

Counter = Callable[[torch.device], int | None]
NO_COUNTER = "no energy counter"


def energy_j(
    device: torch.device,
    fn: Callable[[], object],
    *,
    seconds: float = _SECONDS,
    counter: Counter = energy_mj,
) -> float | None:
    """Joules per call of a callable, idle power of the device included, over calls that last ``seconds``.

    ``None`` on a CPU, and where NVML has no energy counter.
    """
    if counter(device) is None:
        return None
    _wait(device)
    before, begun, calls = counter(device), time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        fn()
        calls += 1
        _wait(device)
    after = counter(device)
    return None if before is None or after is None else (after - before) / 1000 / calls


class EnergyMeter:
    """Energy of short callables: replayed in CUDA graphs, so that the device never waits for the host.

    The counter advances in steps of tens of milliseconds. Energy and calls are counted from one advance to a later one,
    ``seconds`` or more apart, which leaves an error of two readings: 10 ms of work. Callables run on `stream`; a
    backward pass launches where its forward pass did, so that must run there too.

    Args:
        device: where the callables run.
        seconds: duration of each measurement.
        counter: reads the energy that the device has used so far, in millijoules; ``None`` if it cannot.
    """

    def __init__(self, device: torch.device, seconds: float = _SECONDS, counter: Counter = energy_mj) -> None:
        self.device, self.seconds, self._counter = device, seconds, counter
        self._clock = GraphClock(device) if device.type == "cuda" else None

    @property
    def refusal(self) -> str:
        """Why there is no energy to be had here; empty if there is."""
        if self._counter(self.device) is not None:
            return ""
        where = "a CPU" if self.device.type == "cpu" else "NVML reports none for this GPU"
        return f"{NO_COUNTER}: {where}"

    @property
    def stream(self) -> AbstractContextManager[object]:
        """Makes the stream of the measurements current."""
        return torch.cuda.stream(self._clock.stream) if self._clock else nullcontext()

    def per_call_j(self, fn: Callable[[], object], *, captured: bool = True) -> float | None:
        """Joules of one call, idle power of the device included; ``None`` without a counter.

        Args:
            fn: what to measure. It has run before.
            captured: whether to replay it in a CUDA graph where that is possible. Without one, the energy is that of
                calls as the host issues them, and includes the device's waiting for it.
        """
        replay, copies = self._repeated(fn, captured)
        work = _lasting(self.device, replay, _POLL_S)
        first = self._until_advance(work, self._counter(self.device), seconds=0.0)
        if first is None:
            return None
        last = self._until_advance(work, first[0], self.seconds)
        return None if last is None else (last[0] - first[0]) / 1000 / (last[1] * copies)

    def _until_advance(self, work: Callable[[], int], before: int | None, seconds: float) -> tuple[int, int] | None:
        """Work for ``seconds``, then until the counter advances: its value there, and how often the work ran.

        ``None`` if it does not advance.
        """
        begun = advanced = time.perf_counter()
        runs, seen = 0, before
        while seen is not None:
            runs += work()
            now, now_mj = time.perf_counter(), self._counter(self.device)
            if now_mj != seen:
                seen, advanced = now_mj, now
                if seen is not None and now - begun >= seconds:
                    return seen, runs
            elif now - advanced >= _STILL_S:
                return None
        return None

    def _repeated(self, fn: Callable[[], object], captured: bool) -> tuple[Callable[[], object], int]:
        """A callable that does the work of several calls, and of how many."""
        if captured and self._clock is not None:
            try:
                return self._clock.repeated(fn)
            except UnsupportedError:
                pass
        return fn, 1


def _lasting(device: torch.device, fn: Callable[[], object], seconds: float) -> Callable[[], int]:
    """A function that repeats a callable for about so long, waits for the device, and returns how often it ran."""
    runs = 1
    while True:
        _wait(device)
        begun = time.perf_counter()
        for _ in range(runs):
            fn()
        _wait(device)
        took = time.perf_counter() - begun
        if took >= seconds / 2:
            break
        runs = min(10 * runs, max(runs + 1, int(runs * seconds / max(took, 1e-9))))

    def work() -> int:
        for _ in range(runs):
            fn()
        _wait(device)
        return runs

    return work


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

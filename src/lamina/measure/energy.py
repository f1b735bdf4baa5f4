"""Energy of a callable on a GPU, from NVML's energy counter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from lamina.errors import UnsupportedError
from lamina.measure.clocks.graph import GraphClock
from lamina.measure.nvml import energy_mj
from lamina.measure.turns import alone

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
    with alone():
        return EnergyMeter(device, seconds, counter).per_call_j(fn, captured=False)


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

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Work on the stream of the measurements, after what was issued before."""
        if self._clock is None:
            yield
            return
        before = torch.cuda.current_stream(self.device)
        self._clock.stream.wait_stream(before)
        with torch.cuda.stream(self._clock.stream):
            yield
        before.wait_stream(self._clock.stream)

    def per_call_j(self, fn: Callable[[], object], *, captured: bool = True) -> float | None:
        """Joules of one call, idle power of the device included; ``None`` without a counter.

        Args:
            fn: what to measure. It has run before.
            captured: whether to replay it in a CUDA graph where that is possible. Without one, the energy is that of
                calls as the host issues them, and includes the device's waiting for it.
        """
        work = self._graphs(fn) if captured and self._clock else None
        work = work or _Work(self.device, fn, 1)
        first = self._until_advance(work, self._counter(self.device), seconds=0.0)
        last = None if first is None else self._until_advance(work, first[0], self.seconds)
        _wait(self.device)
        return None if first is None or last is None else (last[0] - first[0]) / 1000 / last[1]

    def _until_advance(self, work: Callable[[], int], before_mj: int | None, seconds: float) -> tuple[int, int] | None:
        """Work for ``seconds``, then until the counter advances: its value there, and the number of calls until then.

        ``None`` if it does not advance.
        """
        begun = advanced = time.perf_counter()
        calls, seen = 0, before_mj
        while seen is not None:
            calls += work()
            now, now_mj = time.perf_counter(), self._counter(self.device)
            if now_mj != seen:
                seen, advanced = now_mj, now
                if seen is not None and now - begun >= seconds:
                    return seen, calls
            elif now - advanced >= _STILL_S:
                return None
        return None

    def _graphs(self, fn: Callable[[], object]) -> _Work | None:
        """The work of a callable by a graph of many calls; ``None`` where it cannot be captured."""
        assert self._clock is not None
        try:
            replay, copies = self._clock.repeated(fn)
        except UnsupportedError:
            return None
        return _Work(self.device, replay, copies, self._clock.stream)


class _Work:
    """Repeats a callable for about `_POLL_S`, and returns once the repetitions before these are done.

    So the device has work while the host reads the counter, which may take milliseconds.
    """

    def __init__(
        self, device: torch.device, fn: Callable[[], object], calls: int, stream: torch.cuda.Stream | None = None
    ) -> None:
        self._fn, self._calls, self._runs = fn, calls, 1
        self._cuda = device.type == "cuda"
        self._stream = stream or (torch.cuda.current_stream(device) if self._cuda else None)
        while True:
            _wait(device)
            begun = time.perf_counter()
            self._issue()
            _wait(device)
            took = time.perf_counter() - begun
            if took >= _POLL_S / 2:
                break
            self._runs = min(10 * self._runs, max(self._runs + 1, int(self._runs * _POLL_S / max(took, 1e-9))))
        self._before = self._marked()

    def __call__(self) -> int:
        """The number of calls that were issued; as many are done."""
        mark = self._marked()
        if self._before is not None:
            self._before.synchronize()
        self._before = mark
        return self._runs * self._calls

    def _issue(self) -> None:
        for _ in range(self._runs):
            self._fn()

    def _marked(self) -> torch.cuda.Event | None:
        """Issue the repetitions, with an event behind them."""
        self._issue()
        if not self._cuda:
            return None
        event = torch.cuda.Event()
        event.record(self._stream)
        return event


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

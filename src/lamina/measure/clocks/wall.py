"""Wall time of calls one after the other, as in a training loop: where the host is slower, it shows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from lamina.errors import UsageError
from lamina.measure.device import resolve
from lamina.measure.repeat import DEFAULT, Repeat, collect, summarize
from lamina.record.timing import Timing

_CALLS = 5  # in a sample, so that the wait at its end weighs little
_SAMPLE_S = 0.02


class WallClock:
    """Wall time per call of a loop that waits for the device only at its end.

    The device's clocks measure what the device does; this one also sees the host preparing and launching, and
    so what a user of the network waits for. L2 is 'warm': nothing runs between the calls.
    """

    name = "wall"

    def __init__(self, device: torch.device | str) -> None:
        self.device = resolve(device)

    def time(self, fn: Callable[[], object], *, l2: str = "warm", repeat: Repeat = DEFAULT) -> Timing:
        if l2 != "warm":
            raise UsageError(f"expected l2='warm' for the wall clock, which lets nothing run between calls; got {l2!r}")
        with torch.cuda.device(self.device):
            for _ in range(repeat.warmup):
                fn()
            calls = max(_CALLS, math.ceil(_SAMPLE_S / _seconds(fn, 1)))
            samples = collect(lambda n: [_seconds(fn, calls) / calls * 1e6 for _ in range(n)], repeat)
        return summarize(samples, self.name, l2)

    def sampler(self, fn: Callable[[], object]) -> Callable[[int], list[float]]:
        """Warm a callable up; the answer draws samples of it, each a loop of several calls."""
        with torch.cuda.device(self.device):
            fn()
            calls = max(_CALLS, math.ceil(_SAMPLE_S / _seconds(fn, 1)))

        def draw(samples: int) -> list[float]:
            with torch.cuda.device(self.device):
                return [_seconds(fn, calls) / calls * 1e6 for _ in range(samples)]

        return draw


def _seconds(fn: Callable[[], object], calls: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        fn()
    torch.cuda.synchronize()
    return time.perf_counter() - start

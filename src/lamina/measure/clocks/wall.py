"""Wall time of consecutive calls, as in a training loop; it includes launch overhead if the loop is CPU-bound."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from lamina.errors import UsageError
from lamina.measure.device import resolve
from lamina.measure.repeat import DEFAULT, Repeat, collect, summarize
from lamina.record.timing import Timing

_CALLS = 5  # per sample, to amortize the synchronization at its end,
_ENOUGH_S = 0.1  # but in samples of this length it counts for nothing
_SAMPLE_S = 0.02
_MOST_CAPTURES = 3


class WallClock:
    """Wall time per call of a loop that synchronizes only at its end.

    Unlike the device clocks, it includes the launch overhead of the host, so it is the time that a user sees. L2 is
    'warm': nothing runs between the calls.
    """

    name = "wall"

    def __init__(self, device: torch.device | str) -> None:
        self.device = resolve(device)

    def time(self, fn: Callable[[], object], *, l2: str = "warm", repeat: Repeat = DEFAULT) -> Timing:
        if l2 != "warm":
            raise UsageError(
                f"expected l2='warm' for the wall clock, which does not flush L2 between calls; got {l2!r}"
            )
        with torch.cuda.device(self.device):
            samples = collect(self.sampler(fn, repeat.warmup), repeat)
        return summarize(samples, self.name, l2)

    def sampler(self, fn: Callable[[], object], warmup: int = 1) -> Callable[[int], list[float]]:
        """Warm up a callable; the returned function draws samples of it, each a loop of several calls."""
        with torch.cuda.device(self.device):
            for _ in range(warmup):
                fn()
            call_s = _settled(fn)
            calls = max(min(_CALLS, math.ceil(_ENOUGH_S / call_s)), math.ceil(_SAMPLE_S / call_s))

        def draw(samples: int) -> list[float]:
            with torch.cuda.device(self.device):
                return [_seconds(fn, calls) / calls * 1e6 for _ in range(samples)]

        return draw


def _settled(fn: Callable[[], object]) -> float:
    """Seconds of a call, after those that take more than twice as long: they compile, or capture CUDA graphs."""
    call_s = _seconds(fn, 1)
    for _ in range(_MOST_CAPTURES):
        before, call_s = call_s, min(call_s, _seconds(fn, 1))
        if 2 * call_s > before:
            break
    return call_s


def _seconds(fn: Callable[[], object], calls: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        fn()
    torch.cuda.synchronize()
    return time.perf_counter() - start

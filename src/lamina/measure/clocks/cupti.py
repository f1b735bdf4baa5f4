"""CUPTI activity records: the durations of kernels, without the gaps between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import torch

from lamina.measure.attribution import Attribution
from lamina.measure.clocks.flush import L2Flush
from lamina.measure.clocks.l2 import check_l2
from lamina.measure.device import resolve
from lamina.measure.kernels import KernelTimes, Tally, record_kernels
from lamina.measure.repeat import DEFAULT, Repeat, noise
from lamina.record.timing import Timing

K = TypeVar("K", bound=Hashable)

_GROWTH = 4  # factor by which the samples of a noisy callable grow with the next session
_MAX_RANGES = 5000  # per session: bounds the trace in memory


class CuptiClock:
    """Sum of the durations of all kernels, memcpys and memsets that one call launched, on any thread.

    Kernels that overlap on several streams each count in full. With l2='cold', a fill of twice the L2 size is launched
    before each call, outside of its range, and is not in the sum. `min_time_s` does not apply, since each kernel is
    timed alone. Starting a session costs much more than a sample: pass all callables to `time_many` at once. The
    callables must not use a profiler themselves.
    """

    name = "cupti"

    def __init__(self, device: torch.device | str) -> None:
        self.device = resolve(device)

    def time(self, fn: Callable[[], object], *, l2: str = "warm", repeat: Repeat = DEFAULT) -> Timing:
        return self.time_many({"": fn}, l2=l2, repeat=repeat)[""]

    def time_many(
        self, fns: Mapping[K, Callable[[], object]], *, l2: str = "warm", repeat: Repeat = DEFAULT
    ) -> dict[K, Timing]:
        """The Timing of each callable, all in as few profiler sessions as possible."""
        return dict(self.kernels_of(fns, l2=l2, repeat=repeat).timings)

    def kernels_of(
        self, fns: Mapping[K, Callable[[], object]], *, l2: str = "warm", repeat: Repeat = DEFAULT
    ) -> KernelTimes[K]:
        """Timings, their kernels, and the number of unattributed records.

        Errors: MissingError if CUPTI reports no device activity at all.
        """
        check_l2(l2)
        tally: Tally[K] = Tally()
        with torch.cuda.device(self.device):
            flush = L2Flush(self.device) if l2 == "cold" else None
            pending, size, spent_s = list(fns), repeat.min_samples, 0.0
            while pending:
                step = max(1, _MAX_RANGES // size)
                for first in range(0, len(pending), step):
                    calls = {key: fns[key] for key in pending[first : first + step]}
                    attribution, seconds = _session(calls, size, flush, repeat.warmup, self.device)
                    tally.add(attribution)
                    spent_s += seconds
                taken = len(tally.samples[pending[0]])
                if taken >= repeat.max_samples or spent_s >= repeat.max_time_s * len(fns):
                    break
                size = min((_GROWTH - 1) * taken, repeat.max_samples - taken)
                pending = [key for key in pending if noise(tally.times_us(key)) > repeat.max_noise]
        return tally.report(l2)


def _session(
    fns: Mapping[K, Callable[[], object]], n: int, flush: L2Flush | None, warmup: int, device: torch.device
) -> tuple[Attribution[tuple[K, int]], float]:
    """Profile n calls of each callable. Returns the attribution and the seconds that the calls took."""
    with record_kernels(device) as session:
        start = time.perf_counter()
        for key, fn in fns.items():
            for _ in range(warmup):
                fn()
            for repetition in range(n):
                if flush is not None:
                    flush()
                with session.range((key, repetition)):
                    fn()
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    return session.attribution, seconds

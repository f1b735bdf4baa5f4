"""CUDA events around each call: stream time, gaps between kernels included."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from lamina.measure.clocks.flush import L2Flush
from lamina.measure.clocks.l2 import check_l2
from lamina.measure.device import resolve
from lamina.measure.repeat import DEFAULT, Repeat, collect, summarize
from lamina.record.timing import Timing

_BATCH = 50  # samples in flight; the launch queue of a stream has about a thousand entries
_BATCH_S = 0.02
_CYCLES_PER_S = 2e9  # at least the clock rate of a GPU under load, so that a sleep is not too short
_LONGEST_SLEEP_S = 0.1


class EventsClock:
    """Device time per call between two events, one pair a sample, on the current stream.

    A small kernel runs faster than the host can launch it. Samples are therefore queued in batches without
    synchronization, behind a sleep kernel that lasts until the host has queued the batch: the stream does not wait for
    the host as long as a batch fits into the launch queue. If a callable synchronizes, its launch gaps are part of its
    time. With l2='cold', a fill of twice the L2 size runs before each sample, outside of its events; with l2='warm',
    calls run back to back. Below about 10 us the overhead of the events is visible: use the 'cupti' clock there.
    """

    name = "events"

    def __init__(self, device: torch.device | str) -> None:
        self.device = resolve(device)

    def time(self, fn: Callable[[], object], *, l2: str = "warm", repeat: Repeat = DEFAULT) -> Timing:
        check_l2(l2)
        with torch.cuda.device(self.device):
            before = L2Flush(self.device) if l2 == "cold" else _nothing
            for _ in range(repeat.warmup):
                fn()
            host_s, total_s = _estimate(fn, before)
            batch = max(1, min(_BATCH, int(_BATCH_S / total_s)))

            def draw(n: int) -> list[float]:
                # 1.5x, since the estimate does not include the events.
                sleep_s = min(1.5 * n * host_s, _LONGEST_SLEEP_S)
                torch.cuda._sleep(int(sleep_s * _CYCLES_PER_S))
                return between_events(fn, n, before)

            samples = collect(draw, repeat, batch=batch)
        return summarize(samples, self.name, l2)


def _nothing() -> None:
    """Runs before a sample with warm L2."""


def _estimate(fn: Callable[[], object], before: Callable[[], None]) -> tuple[float, float]:
    """Seconds per sample: to queue it on the host, and in total."""
    calls = 3
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        before()
        fn()
    queued = time.perf_counter()
    torch.cuda.synchronize()
    return (queued - start) / calls, (time.perf_counter() - start) / calls


def between_events(fn: Callable[[], object], n: int, before: Callable[[], None] = _nothing) -> list[float]:
    """Microseconds of n calls on the current stream, all queued before the first is read."""
    starts, ends = ([torch.cuda.Event(enable_timing=True) for _ in range(n)] for _ in range(2))
    for start, end in zip(starts, ends, strict=True):
        before()
        start.record()
        fn()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e3 for start, end in zip(starts, ends, strict=True)]

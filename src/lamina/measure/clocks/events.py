"""CUDA events around each call: the time the stream needed, gaps between its kernels included."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from lamina.measure.clocks.flush import L2Flush
from lamina.measure.clocks.l2 import check_l2
from lamina.measure.device import resolve
from lamina.measure.repeat import DEFAULT, Repeat, collect, summarize
from lamina.record.timing import Timing

_BATCH = 50  # samples in flight; the launch queue of a stream holds about a thousand entries
_BATCH_S = 0.02
_CYCLES_PER_S = 2e9  # at least the clock of a GPU under load, so that a sleep is rather too long
_LONGEST_SLEEP_S = 0.1


class EventsClock:
    """Device time per call between two events, one pair a sample, on the current stream.

    A tiny kernel runs faster than the host can launch it, so samples are queued in batches without any
    wait in between, behind a sleep kernel that lasts until the host has queued the batch: the stream never
    waits for the host as long as a batch fits into the launch queue. A callable that synchronizes defeats
    this, and its launch gaps are then part of its time. With l2='cold' a fill of twice the L2 runs before
    each sample, outside of its events; with l2='warm' calls run back to back. Below some 10 us the cost of
    the events themselves shows: prefer the 'cupti' clock there.
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
                # Half as much again for the events, which the estimate did not hold.
                sleep_s = min(1.5 * n * host_s, _LONGEST_SLEEP_S)
                torch.cuda._sleep(int(sleep_s * _CYCLES_PER_S))
                return between_events(fn, n, before)

            samples = collect(draw, repeat, batch=batch)
        return summarize(samples, self.name, l2)


def _nothing() -> None:
    """What runs before a warm sample."""


def _estimate(fn: Callable[[], object], before: Callable[[], None]) -> tuple[float, float]:
    """Seconds per sample for the host to queue it, and in all."""
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

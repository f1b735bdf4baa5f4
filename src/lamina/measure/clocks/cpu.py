"""The CPU clock."""

from __future__ import annotations

import timeit
from collections.abc import Callable

from lamina.errors import UsageError
from lamina.measure.repeat import DEFAULT, Repeat, collect, summarize
from lamina.record.timing import Timing

_SAMPLE_S = 1e-3


class CpuClock:
    """Wall time per call on the calling thread.

    Short callables are repeated within one sample until it lasts 1 ms. The number of threads is that of torch.
    `torch.utils.benchmark.Timer` is not used: it sets the number of threads to one, and it repeats its warm-up of two
    calls for each sample, which triples the time of long callables.
    """

    name = "cpu"

    def time(self, fn: Callable[[], object], *, l2: str = "warm", repeat: Repeat = DEFAULT) -> Timing:
        if l2 != "warm":
            raise UsageError(f"expected l2='warm' on the CPU, whose clock cannot flush caches; got {l2!r}")
        return summarize(collect(self.sampler(fn, repeat.warmup), repeat), self.name, "-")

    def sampler(self, fn: Callable[[], object], warmup: int = 1) -> Callable[[int], list[float]]:
        """Warm up a callable; the returned function draws samples of it, each of 1 ms or more."""
        for _ in range(warmup):
            fn()
        timer = timeit.Timer("fn()", globals={"fn": fn})
        calls = _calls_per_sample(timer)
        return lambda samples: [timer.timeit(calls) / calls * 1e6 for _ in range(samples)]


def _calls_per_sample(timer: timeit.Timer) -> int:
    calls = 1
    # At least 1 ns, since it divides.
    while (seconds := max(timer.timeit(calls), 1e-9)) < _SAMPLE_S:
        # At most 10x: a first estimate from one short call may be far off.
        calls *= min(10, max(2, round(_SAMPLE_S / seconds)))
    return calls

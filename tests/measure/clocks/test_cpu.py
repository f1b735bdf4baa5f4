"""The CPU clock: threads, calls per sample, and what it reports. Never how long anything took."""

import time

import pytest
import torch

from lamina.errors import UsageError
from lamina.measure.clocks import cpu as room
from lamina.measure.clocks.cpu import CpuClock
from lamina.measure.repeat import Repeat

QUICK = Repeat(min_samples=4, max_samples=4, min_time_s=0, max_time_s=60, warmup=2)


def test_a_timing_has_its_clock_and_l2_state() -> None:
    timing = CpuClock().time(lambda: sum(range(100)), repeat=QUICK)
    assert (timing.clock, timing.l2, timing.n, timing.kernels) == ("cpu", "-", 4, None)
    assert 0 < timing.q1_us <= timing.median_us <= timing.q3_us


def test_the_number_of_threads_is_unchanged() -> None:
    before = torch.get_num_threads()
    seen: set[int] = set()
    torch.set_num_threads(3)
    try:
        CpuClock().time(lambda: seen.add(torch.get_num_threads()), repeat=QUICK)
        assert seen == {3}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_long_callable_runs_once_per_sample() -> None:
    calls: list[None] = []

    def long() -> None:
        calls.append(time.sleep(0.0015))  # type: ignore[func-returns-value]

    CpuClock().time(long, repeat=QUICK)
    estimate = 1
    assert len(calls) == QUICK.warmup + estimate + QUICK.min_samples


def test_cold_l2_is_rejected() -> None:
    with pytest.raises(UsageError, match="l2='warm' on the CPU"):
        CpuClock().time(lambda: None, l2="cold")


def test_an_error_in_the_callable_passes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        CpuClock().time(lambda: 1 / 0, repeat=QUICK)


class FakeTimer:
    """A callable of known duration: measures number x seconds, and counts."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.numbers: list[int] = []

    def timeit(self, number: int) -> float:
        self.numbers.append(number)
        return number * self.seconds


@pytest.mark.parametrize("seconds", [1e-7, 3e-6, 4e-4, 0.9e-3, 1e-3, 2.0])
def test_a_sample_lasts_a_millisecond_but_not_many(seconds: float) -> None:
    timer = FakeTimer(seconds)
    calls = room._calls_per_sample(timer)  # type: ignore[arg-type]
    assert calls * seconds >= 1e-3
    assert calls == 1 or calls * seconds < 11e-3
    assert all(later <= 10 * earlier for earlier, later in zip(timer.numbers, timer.numbers[1:], strict=False))

"""Interleaved timing: order, rounds, and what cannot be timed."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import UnsupportedError, UsageError
from lamina.measure import CpuClock, interleaved
from lamina.measure.interleaved import _within


class Fake:
    """A clock whose callables return their times."""

    name = "fake"

    def __init__(self) -> None:
        self.order: list[Callable[[], object]] = []

    def sampler(self, fn: Callable[[], object]) -> Callable[[int], list[float]]:
        if fn() is None:
            raise UnsupportedError("no time")

        def draw(n: int) -> list[float]:
            self.order.append(fn)
            return [float(fn()) for _ in range(n)]  # type: ignore[arg-type]

        return draw


def test_callables_take_turns_in_both_orders() -> None:
    clock, fns = Fake(), {"a": lambda: 1.0, "b": lambda: 2.0}
    found = interleaved(clock, fns, rounds=3, samples=2)
    a, b = fns.values()
    assert clock.order == [a, b, b, a, a, b]
    assert [(t.median_us, t.n) for t in found.values() if not isinstance(t, Exception)] == [(1.0, 3), (2.0, 3)]


def test_one_that_cannot_be_timed_leaves_the_others() -> None:
    found = interleaved(Fake(), {"a": lambda: None, "b": lambda: 2.0}, rounds=2)
    assert isinstance(found["a"], UnsupportedError)
    assert not isinstance(found["b"], Exception) and found["b"].median_us == 2.0


@given(st.lists(st.floats(0.1, 1e3), min_size=1, max_size=9), st.integers(1, 4))
def test_quartiles_enclose_the_median(values: list[float], samples: int) -> None:
    drawn = iter([values[0], *(value for value in values for _ in range(samples))])
    time = interleaved(Fake(), {"a": lambda: next(drawn)}, rounds=len(values), samples=samples)["a"]
    assert not isinstance(time, Exception)
    assert time.q1_us <= time.median_us <= time.q3_us


@pytest.mark.parametrize(("rounds", "limit_s", "expected"), [(9, 0.0, 3), (2, 0.0, 2), (9, 1e9, 9)])
def test_a_time_limit_leaves_three_rounds(rounds: int, limit_s: float, expected: int) -> None:
    found = interleaved(Fake(), {"a": lambda: 1.0}, rounds=rounds, limit_s=limit_s)["a"]
    assert not isinstance(found, Exception) and found.n == expected


@pytest.mark.parametrize(("limit_s", "expected"), [(0.0, [4, 1, 1]), (1e9, [4] * 9)])
def test_a_time_limit_leaves_fewer_samples(limit_s: float, expected: list[int]) -> None:
    clock, drawn = Fake(), []

    def sampler(fn: Callable[[], object]) -> Callable[[int], list[float]]:
        return lambda n: drawn.append(n) or [1.0] * n  # type: ignore[func-returns-value]

    clock.sampler = sampler  # type: ignore[method-assign]
    interleaved(clock, {"a": lambda: 1.0}, samples=4, limit_s=limit_s)
    assert drawn == expected


@pytest.mark.parametrize(("us", "expected"), [(1.0, 50), (10.0, 10), (60.0, 4), (1000.0, 4)])
def test_short_calls_have_more_samples(us: float, expected: int) -> None:
    clock, drawn = Fake(), []

    def sampler(fn: Callable[[], object]) -> Callable[[int], list[float]]:
        return lambda n: drawn.append(n) or [us] * n  # type: ignore[func-returns-value]

    clock.sampler = sampler  # type: ignore[method-assign]
    interleaved(clock, {"a": lambda: 1.0}, rounds=2, samples=4, least_us=100.0)
    assert drawn == [1, expected, expected]


@pytest.mark.parametrize(
    ("limit_s", "round_s", "expected"), [(3.0, 1.0, 5), (2.0, 1.0, 2), (0.5, 1.0, 1), (0.0, 0.0, 1)]
)
def test_three_rounds_fit_into_the_limit(limit_s: float, round_s: float, expected: int) -> None:
    assert _within(limit_s, round_s, 5) == expected


def test_no_rounds_are_rejected() -> None:
    with pytest.raises(UsageError, match="at least one round"):
        interleaved(Fake(), {}, rounds=0)


def test_the_clock_of_the_cpu_draws_samples() -> None:
    x = torch.randn(16, 16)
    draws = CpuClock().sampler(lambda: x @ x)(3)
    assert len(draws) == 3 and all(draw > 0 for draw in draws)

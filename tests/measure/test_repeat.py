"""The stopping rule and the quartiles, against a clock that only moves when told."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import UsageError
from lamina.measure.repeat import Repeat, collect, noise, quartiles, summarize
from lamina.record.timing import Timing

positive = st.floats(min_value=1e-3, max_value=1e9)


class FakeTime:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@given(st.lists(positive, min_size=1, max_size=50))
def test_quartiles_are_numpys(samples: list[float]) -> None:
    assert quartiles(samples) == pytest.approx(tuple(np.percentile(samples, [25, 50, 75])))


def test_noise_is_the_spread_over_the_median() -> None:
    assert noise([8.0, 10.0, 12.0]) == pytest.approx(0.2)
    assert noise([5.0]) == 0.0
    assert noise([0.0, 0.0]) == 0.0
    assert noise([0.0, 0.0, 0.0, 4.0, 4.0]) == float("inf")


def test_summarize_keeps_clock_and_l2() -> None:
    timing = summarize([3.0, 1.0, 2.0], "graph", "cold", kernels=4)
    assert timing == Timing("graph", "cold", median_us=2.0, q1_us=1.5, q3_us=2.5, n=3, kernels=4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_samples": 0},
        {"min_samples": 11, "max_samples": 10},
        {"min_time_s": 3.0, "max_time_s": 2.0},
        {"min_time_s": -1.0},
        {"max_noise": -0.1},
        {"max_noise": float("nan")},
        {"warmup": -1},
    ],
)
def test_invalid_criteria_are_rejected(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="expected"):
        Repeat(**wrong)  # type: ignore[arg-type]


def test_enough_needs_samples_time_and_low_noise() -> None:
    rule = Repeat(min_samples=3, max_samples=100, min_time_s=1.0, max_time_s=10.0, max_noise=0.02)
    quiet, noisy = [10.0, 10.0, 10.0], [5.0, 10.0, 15.0]
    assert rule.enough(quiet, 1.0)
    assert not rule.enough(quiet[:2], 1.0)
    assert not rule.enough(quiet, 0.9)
    assert not rule.enough(noisy, 9.9)
    assert rule.enough(noisy, 10.0)
    assert rule.enough([5.0, 15.0] * 50, 0.0)
    assert not rule.enough([], 11.0)


@given(
    st.integers(1, 20),
    st.integers(0, 30),
    st.integers(1, 7),
    st.floats(0.01, 1.0),
    st.lists(positive, min_size=60, max_size=60),
)
def test_collect_stops_as_soon_as_the_criterion_holds(
    low: int, more: int, batch: int, tick: float, stream: list[float]
) -> None:
    rule = Repeat(min_samples=low, max_samples=low + more, min_time_s=0.5, max_time_s=3.0, max_noise=0.1)
    now, drawn = FakeTime(), iter(stream)
    sizes: list[int] = []

    def draw(n: int) -> list[float]:
        now.seconds += tick
        sizes.append(n)
        return [next(drawn) for _ in range(n)]

    samples = collect(draw, rule, batch=batch, now=now)

    assert samples == stream[: len(samples)]
    assert 1 <= len(samples) <= rule.max_samples
    assert rule.enough(samples, now.seconds)
    before = samples[: len(samples) - sizes[-1]]
    assert not rule.enough(before, tick * (len(sizes) - 1))


def timing(q1: float, median: float, q3: float) -> Timing:
    return Timing("cpu", "-", median, q1, q3, 10)


def test_a_difference_inside_the_spread_is_none() -> None:
    assert timing(9, 10, 11).overlaps(timing(10.5, 12, 13))
    assert timing(9, 10, 11).overlaps(timing(11, 12, 13))
    assert not timing(9, 10, 11).overlaps(timing(11.1, 12, 13))


@given(st.lists(st.lists(positive, min_size=3, max_size=3), min_size=2, max_size=2))
def test_overlap_is_mutual(two: list[list[float]]) -> None:
    one, other = (timing(*sorted(values)) for values in two)
    assert one.overlaps(other) == other.overlaps(one)
    assert one.overlaps(one)

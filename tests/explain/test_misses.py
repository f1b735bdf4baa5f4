"""A prediction is off only by more than the spread, and a miss is explained."""

from dataclasses import replace

import pytest

from lamina.explain.misses import LEFT_OUT, gain_error, left_out, miss
from lamina.pipeline.what_if import CHANGES, said
from lamina.record import Timing, WhatIf


def timing(us: float, spread: float = 0.0) -> Timing:
    return Timing("events", "warm", us, us - spread, us + spread, 9)


def what_if(
    after: float | None, predicted: float | None, spread: float = 0.0, change: str = "fusion", reason: str = ""
) -> WhatIf:
    measured = None if after is None else timing(after, spread)
    return WhatIf(change, "x", "fc", "step", "fp32", 1, timing(100.0, spread), predicted, "rule", measured, 0.0, reason)


@pytest.mark.parametrize(
    ("after", "predicted", "error"),
    [(80.0, 80.0, 0.0), (80.0, 90.0, (1 / 9 - 0.25) / 0.25), (125.0, 80.0, (0.25 + 0.2) / 0.2), (None, 80.0, None)],
)
def test_the_error_is_relative_to_the_measured_gain(
    after: float | None, predicted: float | None, error: float | None
) -> None:
    assert gain_error(what_if(after, predicted)) == pytest.approx(error)


def test_a_difference_inside_the_spread_is_none() -> None:
    assert gain_error(what_if(100.0, 95.0, spread=3.0)) == 0.0
    assert gain_error(what_if(100.0, 95.0, spread=2.0)) == float("inf")


def test_each_kind_of_miss_is_reported() -> None:
    assert miss(what_if(80.0, 80.0)) == ""
    assert miss(what_if(80.0, 90.0)) == "10.0 us shorter than predicted"
    assert miss(what_if(80.0, 70.0)) == "10.0 us longer than predicted"
    assert miss(what_if(80.0, None)) == "not predicted: rule"
    assert miss(what_if(None, 80.0, reason="needs a GPU")) == "needs a GPU"


@pytest.mark.parametrize("before", [0.0, 50.0])
@pytest.mark.parametrize("after", [0.0, 50.0])
@pytest.mark.parametrize("predicted", [None, 0.0, 50.0])
def test_phases_without_kernels_have_no_gain(before: float, after: float, predicted: float | None) -> None:
    one = replace(what_if(after, predicted), before=timing(before))
    assert (one.measured_gain is None) == (not before or not after)
    assert (one.predicted_gain is None) == (not before or not predicted)
    if one.measured_gain is None:
        assert gain_error(one) is None and miss(one).startswith(f"no kernel ran {'after' if before else 'before'}")
    assert "None" not in said(one)


def test_every_change_has_a_reason_and_only_misses_get_one() -> None:
    assert {*LEFT_OUT} == {*CHANGES, "impl"}
    found = left_out([what_if(80.0, 90.0), what_if(80.0, 80.0, change="cuda_graph")])
    assert found == [f"fusion: {LEFT_OUT['fusion']}"]

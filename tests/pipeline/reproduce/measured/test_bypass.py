"""L1 bypass: gains and losses of synthetic rows, and what was not counted."""

from typing import Any

import pytest

from lamina.pipeline.reproduce import reproduce_recorded
from lamina.pipeline.reproduce.measured.bypass import (
    HIT,
    MEASUREMENT,
    hit_rates_stay,
    some_gain_both_ways,
    weight_gradient_gain,
)
from lamina.pipeline.reproduce.measured.judging import NotMeasured, judge
from lamina.spec.published import PublishedValue, entry

VALUE = PublishedValue(layer="best", quantity="weight gradient gain", value=6.2, unit="%", better="higher")


def pair(layer: str, phase: str, gain: float | None, hits: tuple[float, float] | None = None) -> list[dict[str, Any]]:
    """A phase with L1 on, in 100 us, and off."""
    rows = []
    for place, (state, us) in enumerate((("on", 100.0), ("off", 100.0 * (1 - (gain or 0.0))))):
        rows.append(
            {"change": "l1_bypass", "layer": layer, "phase": phase, "l1": state, "measured_gain": gain}
            | {"median_us": us, "q1_us": us - 0.5, "q3_us": us + 0.5, "counters": hits and {HIT: hits[place]}}
        )
    return rows


def test_a_gain_of_the_weight_gradient_is_the_best_layers() -> None:
    rows = pair("a", "backward_weight", 0.062) + pair("b", "backward_weight", 0.01) + pair("c", "forward", 0.5)
    ours, text = weight_gradient_gain(rows, VALUE)
    assert ours == pytest.approx(6.2) and text == "6.2 % (a)"


def test_a_loss_says_how_large_and_why() -> None:
    rows = pair("a", "backward_weight", -0.06, (40.0, 0.0)) + pair("b", "backward_weight", -0.07, (50.0, 0.0))
    ours, text = weight_gradient_gain(rows, VALUE)
    assert ours == pytest.approx(-6.0)
    assert "all 2 lose 6.0 to 7.0 %" in text and "40 to 50 %" in text and "in L1" in text
    assert "of all" not in weight_gradient_gain(pair("a", "backward_weight", -0.06), VALUE)[1]


@pytest.mark.parametrize(
    ("forward", "weight", "holds"),
    [(0.02, 0.06, True), (0.02, -0.06, False), (-0.02, 0.06, False), (0.005, 0.06, False)],
)
def test_a_gain_within_the_spread_is_none(forward: float, weight: float, holds: bool) -> None:
    rows = pair("a", "forward", forward) + pair("b", "backward_weight", weight)
    assert some_gain_both_ways(rows)[1] is holds


def test_hit_rates_that_stay_and_that_change() -> None:
    stay = pair("a", "forward", 0.0, (30.0, 30.5))
    assert hit_rates_stay(stay)[1] is True
    # Those of a run of its own, without times.
    text, holds = hit_rates_stay(stay + pair("b", "backward_weight", None, (45.0, 2.0)))
    assert holds is False and text == "the same in 1 of 2 phases; b backward_weight 45 % with, 2 % without"
    with pytest.raises(NotMeasured, match="not counted"):
        hit_rates_stay(pair("a", "forward", 0.0))


def test_what_was_not_measured_is_said() -> None:
    value, both, rates = judge(entry("icpe18-l1-bypass"), MEASUREMENT, pair("a", "forward", 0.1))
    assert value.agrees is both.agrees is rates.agrees is None
    assert rates.ours == "hit rates with L1 on and off were not counted"


def test_on_a_hopper_gpu_every_weight_gradient_loses() -> None:
    gain, both, *_ = reproduce_recorded(entry("icpe18-l1-bypass")).rows
    assert gain.measured is not None and -6.5 < gain.measured < -5.5 and "all 5 lose 5.6 to 7.6 %" in gain.ours
    assert both.agrees is False

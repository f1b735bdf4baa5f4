"""The time of a plan from its parts."""

from dataclasses import replace

from lamina.pipeline.study.predicted import predicted_us, scale
from lamina.pipeline.study.whole import Compared
from lamina.record import Timing
from lamina.record.study import Measured, Settings


def measured(mode: str, time_us: float) -> Measured:
    timing = Timing("wall", "warm", time_us, time_us, time_us, 9)
    return Measured("uniform", Settings("fp32", "nchw", mode), timing)


EAGER = measured("eager", 100.0)
DENSE = {"conv": 30.0, "relu": 10.0, "fc": 8.0, "flatten": None, "the update": 2.0}
PLAN = {"conv": 10.0, "relu": 4.0, "fc.first": 2.0, "fc.second": 3.0, "flatten": 1.0, "the update": 1.0}


def plan(mode: str) -> Compared:
    return Compared(replace(measured(mode, 1.0), name="plan"), (EAGER,), True, "", parts=(DENSE, PLAN))


def test_parts_alone_save_at_most_what_the_network_takes() -> None:
    assert scale(EAGER, 50.0) == 1.0 and scale(EAGER, 0.0) == 1.0
    assert scale(measured("graph", 20.0), 40.0) == 0.5


def test_a_plan_takes_less_by_what_its_parts_save_in_its_mode() -> None:
    assert predicted_us(plan("eager"), EAGER, [EAGER, measured("compiled", 20.0)]) == 100.0 - 30.0
    assert predicted_us(plan("compiled"), EAGER, [EAGER, measured("compiled", 20.0)]) == 20.0 * 20.0 / 50.0


def test_without_parts_there_is_no_prediction() -> None:
    assert predicted_us(replace(plan("eager"), parts=({}, {})), EAGER, [EAGER]) is None
    assert predicted_us(replace(plan("eager"), parts=(DENSE, dict.fromkeys(DENSE))), EAGER, [EAGER]) is None


def test_a_mode_that_was_not_timed_has_the_time_of_the_base() -> None:
    assert predicted_us(plan("graph"), EAGER, []) == 70.0

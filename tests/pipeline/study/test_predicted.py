"""The time of a plan from its layers."""

from dataclasses import replace

import pytest

from lamina.pipeline.study.layers import Layers
from lamina.pipeline.study.predicted import predicted_us, scale
from lamina.pipeline.study.whole import Compared
from lamina.record import Timing
from lamina.record.study import Measured, Settings


def measured(mode: str, time_us: float) -> Measured:
    timing = Timing("wall", "warm", time_us, time_us, time_us, 9)
    return Measured("uniform", Settings("fp32", "nchw", mode), timing)


LAYERS = Layers(dense_us={"conv": 30.0, "fc": 10.0}, faster={"conv": {"fused": 5.0}, "fc": {"circulant": 6.0}})
EAGER = measured("eager", 100.0)


def test_layers_alone_save_at_most_what_the_network_takes() -> None:
    assert scale(EAGER, LAYERS) == 1.0 and scale(EAGER, Layers()) == 1.0
    assert scale(measured("graph", 20.0), LAYERS) == 0.5


@pytest.mark.parametrize(("mode", "expected"), [("eager", 100.0 - 6.0 - 5.0), ("compiled", 20.0 - 0.5 * 6.0)])
def test_the_compiler_fuses_units_itself(mode: str, expected: float) -> None:
    plan = replace(measured(mode, 1.0), name="plan")
    choice = {"conv": "fused", "fc": "circulant"}
    compared = Compared(plan, (EAGER,), True, "", choice, alone_us={"conv": 1.0, "fc": 4.0, "other": 3.0})
    assert predicted_us(LAYERS, compared, EAGER, [EAGER, measured("compiled", 20.0)]) == expected


def test_a_mode_that_was_not_timed_has_the_time_of_the_base() -> None:
    compared = Compared(replace(measured("graph", 1.0), name="plan"), (EAGER,), True, "", {"fc": "circulant"})
    assert predicted_us(LAYERS, compared, EAGER, []) == 100.0

"""What a study tried: times that follow from others."""

from math import inf

from lamina.record import Timing
from lamina.record.study import Measured, Settings, Trial

SETTINGS = Settings("fp32", "nchw", "eager")
TIMING = Timing("wall", "warm", 3.0, 2.5, 3.5, 9)


def test_what_was_not_timed_takes_forever() -> None:
    assert Measured("uniform", SETTINGS, TIMING).time_us == 3.0
    assert Measured("uniform", SETTINGS, None).time_us == inf


def test_a_candidate_saves_what_the_dense_layer_takes_longer() -> None:
    assert Trial("fc", "Linear", "sparse", SETTINGS, TIMING, 5.0).saved_us == 2.0
    assert Trial("fc", "Linear", "sparse", SETTINGS, None, 5.0).saved_us == 0.0
    assert Trial("fc", "Linear", "sparse", SETTINGS, TIMING).saved_us == 0.0

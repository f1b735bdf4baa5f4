"""The stopwatch, on a clock that only moves when told."""

from lamina.measure.stopwatch import Stopwatch


def test_total_and_laps() -> None:
    readings = iter([10.0, 11.0, 13.0, 13.5, 20.0])
    watch = Stopwatch(now=lambda: next(readings))
    assert watch.seconds == 1.0
    assert watch.lap() == 3.0
    assert watch.lap() == 0.5
    assert watch.seconds == 10.0


def test_the_default_clock_never_runs_backwards() -> None:
    watch = Stopwatch()
    first = watch.seconds
    assert 0 <= first <= watch.seconds

"""Warming up until the clock rests, on a simulated card and a clock that only moves when told."""

from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import chain, repeat

import pytest
import torch

from lamina.measure.settle import Settling, agree, settle
from lamina.record.device_state import DeviceState

room = import_module("lamina.measure.settle")  # as a module: the room exports its function


def state(sm_mhz: int | None) -> DeviceState:
    return DeviceState(sm_mhz, None, None, None, None, None, None)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterator[DeviceState | None]], Settling]:
    """Settle a card whose readings are given; each busy call lasts 30 ms."""
    monkeypatch.setattr(room, "resolve", torch.device)
    seconds = [0.0]

    def busy() -> None:
        seconds[0] += 0.03

    def go(readings: Iterator[DeviceState | None]) -> Settling:
        return settle(
            "cuda",
            limit_s=2.0,
            interval_s=0.05,
            busy=busy,
            read=lambda _: next(readings),
            now=lambda: seconds[0],
        )

    return go


def test_it_stops_when_five_readings_agree(run: Callable[[Iterator[DeviceState | None]], Settling]) -> None:
    ramp = [345, 900, 1500, 1980, 1975, 1980, 1980, 1970]
    result = run(map(state, chain(ramp, repeat(0))))
    assert result.settled
    assert [reading.sm_mhz for reading in result.readings] == ramp
    assert result.seconds == pytest.approx(len(ramp) * 0.06)


def test_it_stops_at_the_limit(
    run: Callable[[Iterator[DeviceState | None]], Settling], caplog: pytest.LogCaptureFixture
) -> None:
    result = run(map(state, chain.from_iterable(repeat([1000, 1100]))))
    assert not result.settled
    assert 2.0 <= result.seconds < 2.1
    assert "did not become stable" in caplog.text


def test_without_sensors_it_warms_up_until_the_limit(run: Callable[[Iterator[DeviceState | None]], Settling]) -> None:
    result = run(repeat(None))
    assert result.readings == ()
    assert not result.settled
    assert result.seconds >= 2.0


def test_nothing_to_do_on_the_cpu() -> None:
    assert settle("cpu") == Settling((), True, 0.0)


@pytest.mark.parametrize(
    ("clocks", "expected"),
    [
        ([1000] * 5, True),
        ([1000] * 4, False),
        ([1, 1000, 1000, 1000, 1000, 990], True),
        ([1000, 1000, 1000, 1000, 989], False),
        ([1000, 1000, None, 1000, 1000], False),
        ([], False),
    ],
)
def test_agreement(clocks: list[int | None], expected: bool) -> None:
    assert agree(clocks) is expected


@pytest.mark.gpu
def test_a_real_gpu_settles() -> None:
    pytest.importorskip("pynvml")
    result = settle("cuda", limit_s=10.0)
    assert result.settled, result
    assert len(result.readings) >= 5

"""The wall clock: host and device together."""

from contextlib import nullcontext

import pytest
import torch

from lamina.errors import UsageError
from lamina.measure.clocks import events, wall
from lamina.measure.clocks.wall import WallClock
from lamina.measure.repeat import Repeat


class Machine:
    """A host that needs time to launch and a device that works meanwhile; waiting joins the two."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, host_s: float, device_s: float) -> None:
        self.now = self.done = 0.0
        self.host_s, self.device_s = host_s, device_s
        monkeypatch.setattr(wall, "resolve", torch.device)
        monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "synchronize", self.wait)
        monkeypatch.setattr(wall.time, "perf_counter", lambda: self.now)

    def wait(self, *_: object) -> None:
        self.now = max(self.now, self.done)

    def launch(self) -> None:
        self.now += self.host_s
        self.done = max(self.done, self.now) + self.device_s


QUICK = Repeat(min_samples=3, max_samples=3, min_time_s=0)


@pytest.mark.parametrize(("host_ms", "device_ms", "expected_us"), [(1.0, 4.0, 4e3), (4.0, 1.0, 4e3)])
def test_the_wall_time_of_a_loop_is_the_slower_of_host_and_device(
    monkeypatch: pytest.MonkeyPatch, host_ms: float, device_ms: float, expected_us: float
) -> None:
    machine = Machine(monkeypatch, host_ms / 1e3, device_ms / 1e3)
    timing = WallClock("cuda").time(machine.launch, repeat=QUICK)
    assert (timing.clock, timing.l2, timing.n) == ("wall", "warm", 3)
    # The first call of a sample finds an idle device, the last one is waited for.
    assert timing.median_us == pytest.approx(expected_us + min(host_ms, device_ms) * 1e3 / 5, rel=0.01)


@pytest.mark.parametrize(("device_ms", "calls"), [(300.0, 1), (60.0, 2), (5.0, 5), (0.5, 40)])
def test_samples_of_slow_calls_are_short(monkeypatch: pytest.MonkeyPatch, device_ms: float, calls: int) -> None:
    machine = Machine(monkeypatch, 0.0, device_ms / 1e3)
    draw = WallClock("cuda").sampler(machine.launch)
    begun = machine.now
    assert draw(1) == [pytest.approx(device_ms * 1e3)]
    assert machine.now - begun == pytest.approx(calls * device_ms / 1e3)


def test_cold_l2_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, 1.0, 1.0)
    with pytest.raises(UsageError, match="expected l2='warm' for the wall clock"):
        WallClock("cuda").time(lambda: None, l2="cold")


@pytest.mark.gpu
def test_many_small_kernels_are_launch_bound() -> None:
    x = torch.zeros(8, device="cuda")

    def fn() -> None:
        for _ in range(100):
            x.add_(1)

    host = WallClock("cuda").time(fn).median_us
    device = events.EventsClock("cuda").time(fn).median_us
    assert host > 0.9 * device


def test_calls_that_capture_take_no_part_in_the_number_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 1e-3, 0.0)
    calls = []

    def captured() -> None:
        calls.append(machine.now)
        machine.now += 5.0 if len(calls) < 3 else 0.0  # it compiles and captures
        machine.launch()

    draw = WallClock("cuda").sampler(captured)
    ready = len(calls)
    assert draw(1) == pytest.approx([1e3]) and len(calls) - ready >= 20

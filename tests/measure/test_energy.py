"""Energy from a counter that advances with the work, however long it takes."""

import pytest
import torch

from lamina.measure import energy
from lamina.measure.energy import EnergyMeter, energy_j

CPU = torch.device("cpu")


class Work:
    """Two joules a call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1

    def counter(self, device: torch.device) -> int | None:
        return 2000 * self.calls


@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_energy_is_counted_over_whole_calls(seconds: float) -> None:
    work = Work()
    assert energy_j(CPU, work, seconds=seconds, counter=work.counter) == 2.0
    assert EnergyMeter(CPU, seconds, work.counter).per_call_j(work) == 2.0


def test_without_a_counter_nothing_runs() -> None:
    work = Work()
    assert energy_j(CPU, work, counter=lambda device: None) is None
    assert not work.calls
    assert EnergyMeter(CPU, counter=lambda device: None).refusal == "no energy counter: a CPU"
    assert EnergyMeter(CPU, counter=work.counter).refusal == ""


def test_a_counter_that_stands_still_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "_STILL_S", 0.01)
    assert energy_j(CPU, Work(), seconds=0.0, counter=lambda device: 7) is None


def test_a_counter_that_is_lost_on_the_way_does_not_count() -> None:
    work = Work()
    read = iter([0, 0])
    assert energy_j(CPU, work, seconds=0.0, counter=lambda device: next(read, None)) is None

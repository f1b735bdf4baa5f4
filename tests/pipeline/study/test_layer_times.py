"""Quick times of single layers."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from lamina import pipeline, run
from lamina.pipeline.deft.calibration import material
from lamina.pipeline.study import layer_times, uniform
from lamina.pipeline.study.subject import Subject
from lamina.record import Timing
from lamina.record.study import Measured, Settings

CPU = torch.device("cpu")
WHOLE = Measured("uniform", Settings("fp32", "nchw", "eager"), Timing("wall", "warm", 100.0, 100.0, 100.0, 3))


def subject(network: nn.Module) -> Subject:
    target, _ = pipeline.find("lenet5")
    parts = material("fashion-mnist", (1, 28, 28), 40, 0, CPU, target.train_test)
    return Subject("net", network, CPU, False, 4, parts, run.classification(10))


def timed(monkeypatch: pytest.MonkeyPatch, time_us: float) -> list[str]:
    asked: list[str] = []

    def timer(steps: dict[str, Any]) -> dict[str, Timing]:
        asked.extend(steps)
        return {name: Timing("wall", "warm", time_us, time_us, time_us, 3) for name in steps}

    stand_in = SimpleNamespace(timer=timer, mode="eager", training=False)
    monkeypatch.setattr(layer_times, "selector", lambda *_, **__: stand_in)
    return asked


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(2704, 8), nn.ReLU(), nn.Linear(8, 10))


def test_the_part_of_a_kind_of_layers_is_that_of_the_whole_step(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = timed(monkeypatch, 5.0)
    assert layer_times.part_of(subject(net()), WHOLE, nn.Linear) == pytest.approx(0.1)
    assert asked == ["2", "4"]
    slow = replace(WHOLE, timing=Timing("wall", "warm", 1.0, 1.0, 1.0, 3))
    assert layer_times.part_of(subject(net()), slow, nn.Linear) == 1.0


@pytest.mark.parametrize(("time_us", "refused"), [(1.4, True), (1.6, False)])
def test_methods_of_linear_layers_are_for_networks_that_spend_time_there(
    monkeypatch: pytest.MonkeyPatch, time_us: float, refused: bool
) -> None:
    timed(monkeypatch, time_us)
    reason = uniform._too_little(subject(net()), WHOLE)
    assert (reason is not None) == refused
    assert reason is None or "linear layers alone, which take 2.8% of the step" in reason
    without_images = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    assert uniform._too_little(subject(without_images), WHOLE) is None

"""The parts of a step."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from lamina import pipeline, run
from lamina.pipeline.deft.calibration import material
from lamina.pipeline.study import layer_times, parts
from lamina.pipeline.study.parts import UPDATE, parts_us, saved_us, unite, units
from lamina.pipeline.study.subject import Subject
from lamina.record import Timing
from lamina.record.study import Settings

CPU = torch.device("cpu")
EAGER = Settings("fp32", "nchw", "eager")


class Net(nn.Module):
    """Two blocks that end alike, an in-place activation, and a module that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Flatten())
        self.fc = nn.Sequential(nn.Linear(2704, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Identity())
        self.out, self.spare = nn.Linear(8, 10), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.fc(self.conv(x)))  # type: ignore[no-any-return]


def subject(network: nn.Module, training: bool, optimizer: str = "sgd") -> Subject:
    target, _ = pipeline.find("lenet5")
    images = material("fashion-mnist", (1, 28, 28), 40, 0, CPU, target.train_test)
    return Subject("net", network, CPU, training, 4, images, run.classification(10), optimizer)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_each_innermost_module_and_the_update_have_a_time(optimizer: str) -> None:
    network = Net()
    before = copy.deepcopy(network.state_dict())
    found = parts_us(subject(network, True, optimizer), network, EAGER)
    names = ["conv.0", "conv.1", "conv.2", "fc.0", "fc.1", "fc.2", "fc.3", "fc.4", "out", UPDATE]
    assert list(found) == names and found["fc.4"] == 0.0
    assert all(time is not None and time > 0 for name, time in found.items() if name != "fc.4")
    assert all(torch.equal(one, before[name]) for name, one in network.state_dict().items())
    assert network.conv[1].inplace and all(one.grad is None for one in network.parameters())


def test_modules_without_parameters_that_compute_alike_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def timer(steps: dict[str, Any]) -> dict[str, Timing | Exception]:
        asked.extend(steps)
        return {
            name: ValueError("fails") if name == "conv.2" else Timing("wall", "warm", 5.0, 5.0, 5.0, 3)
            for name in steps
        }

    for place in (layer_times, parts):
        monkeypatch.setattr(place, "quick", lambda *_: SimpleNamespace(timer=timer, mode="eager", training=False))
    found = parts_us(subject(Net(), False), Net(), EAGER)
    assert asked == ["conv.0", "conv.1", "conv.2", "fc.0", "fc.1", "fc.2", "out"]
    assert found["fc.3"] == 5.0 and found["conv.2"] is None and UPDATE not in found


def test_layers_with_their_activations_become_units_that_compute_the_same() -> None:
    network, x = Net(), torch.randn(2, 1, 28, 28)
    expected = network(x)
    assert unite(network, units(network)) == {"conv.0", "fc.0", "fc.2"}
    assert [type(one) for one in network.fc] == [nn.Sequential, nn.Identity, nn.Sequential, nn.Identity, nn.Identity]
    assert torch.equal(network(x), expected)


def test_neighbours_of_the_dense_network_are_parts_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, type] = {}

    def layer_times(model: nn.Module, names: Any, *_: Any) -> dict[str, float]:
        asked.update({name: type(model.get_submodule(name)) for name in names})
        return dict.fromkeys(asked, 5.0)

    monkeypatch.setattr(parts, "layer_times", layer_times)
    monkeypatch.setattr(parts, "compiled", lambda unit, mode: Compiled(unit))
    plan = Net()
    plan.fc[0] = nn.Sequential(nn.Linear(2704, 2), nn.Linear(2, 8))  # no layer that could be fused
    found = parts_us(subject(Net(), False), plan, EAGER, units(Net()))
    united = dict.fromkeys(["conv.0", "fc.0", "fc.2"], Compiled)
    assert asked == united | {"conv.2": nn.Flatten, "out": nn.Linear}
    assert found == dict.fromkeys(asked, 5.0) | {"conv.1": 0.0, "fc.1": 0.0, "fc.3": 0.0, "fc.4": 0.0}


def test_only_the_compiler_on_a_gpu_fuses_and_takes_its_time() -> None:
    gpu: Any = SimpleNamespace(device=torch.device("cuda"), training=False)
    on_cpu, compiled = subject(Net(), False), Settings("fp32", "nchw", "compiled")
    assert parts.neighbours(gpu, Net(), compiled, 7.0) == units(Net())
    assert parts.neighbours(gpu, Net(), compiled, 5.0) == []
    assert parts.neighbours(gpu, Net(), EAGER, 7.0) == parts.neighbours(on_cpu, Net(), compiled, 7.0) == []


class Compiled(nn.Sequential):
    """In place of what ``torch.compile`` returns."""


class Odd(nn.Module):
    """A part that raises unless its network runs, and one whose output is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.fc, self.count, self.fussy = nn.Flatten(), nn.Linear(784, 10), Count(), Fussy()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.fussy.allowed = True
        y: torch.Tensor = self.fussy(self.fc(self.flat(x))) / self.count(x)
        self.fussy.allowed = False
        return y


class Count(nn.Module):
    def forward(self, x: torch.Tensor) -> int:
        return len(x)


class Fussy(nn.Module):
    allowed = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.allowed:
            raise KeyError("alone")
        return x + 1


def test_what_does_not_run_alone_has_no_time() -> None:
    found = parts_us(subject(Odd(), True), Odd(), EAGER)
    assert found["fussy"] is None and found["fc"] is not None and found[UPDATE] is not None


def test_what_is_unknown_in_one_network_counts_in_neither() -> None:
    before, after = {"a": 8.0, "b": None, "c": 4.0, "d": 1.0}, {"a": 2.0, "b": 3.0, "c": None, "d.new": 0.5}
    assert saved_us(before, after) == (9.0, 6.5)

"""The whole network by a choice: with and without its fused units where the compiler runs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import lamina
from lamina import run
from lamina.pipeline.convert import selector
from lamina.pipeline.deft.calibration import material
from lamina.pipeline.study.subject import Subject
from lamina.pipeline.study.whole import compare, to_sequence, unfused
from lamina.record import Timing
from lamina.record.study import Measured, Settings

CPU = torch.device("cpu")
FUSED, CIRCULANT = "fused[impl=reference]", "circulant[block_size=2]"
MERGED = {f"conv {FUSED}": ("conv", "pool"), f"first {FUSED}": ("first", "active")}


class Net(nn.Module):
    """A unit whose ReLU is called in other places too, one of a linear layer, and a layer beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu, self.pool = nn.Conv2d(1, 4, 5, stride=3), nn.ReLU(), nn.MaxPool2d(2)
        self.first, self.active, self.last = nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.relu(self.conv(x))).flatten(1)
        return self.last(self.relu(self.active(self.first(x))))  # type: ignore[no-any-return]


def fused(model: nn.Module) -> nn.Module:
    names = {name for unit in MERGED.values() for name in unit}
    model, record = lamina.convert(model, lamina.Fusion(impl="reference"), lambda name, _: name in names)
    assert {layer.layer for layer in record.replaced} == {"conv", "first"}
    return model


def test_fused_units_come_apart() -> None:
    torch.manual_seed(0)
    dense, x = Net().eval(), torch.randn(2, 1, 28, 28)
    expected = dense(x)
    torch.manual_seed(0)
    choice = {"conv": FUSED, "first": FUSED, "last": CIRCULANT}
    model = fused(Net().eval())
    ((rest, separate),) = unfused(model, choice, MERGED, dense)
    assert rest == {"last": CIRCULANT}
    assert [type(separate.get_submodule(name)) for name in ("conv", "pool", "first", "active")] == [
        nn.Conv2d, nn.MaxPool2d, nn.Linear, nn.ReLU,
    ]  # fmt: skip
    assert [*separate.state_dict()] == [*dense.state_dict()]
    torch.testing.assert_close(separate(x), expected)
    assert type(model.get_submodule("conv")) is not nn.Conv2d  # not changed


@pytest.mark.parametrize("choice", [{}, {"conv": FUSED}, {"last": CIRCULANT}])
def test_there_is_a_variant_only_where_other_layers_change_too(choice: dict[str, str]) -> None:
    assert unfused(Net(), choice, MERGED, Net()) == []


def subject() -> Subject:
    target, _ = lamina.pipeline.find("lenet5")
    parts = material("fashion-mnist", (1, 28, 28), 40, 0, CPU, target.train_test)
    return Subject("net", Net(), CPU, False, 4, parts, run.classification(10))


@pytest.mark.parametrize(("mode", "wins"), [("compiled", True), ("eager", False)])
def test_the_variant_without_fused_units_is_for_the_compiler(
    monkeypatch: pytest.MonkeyPatch, mode: str, wins: bool
) -> None:
    monkeypatch.setattr(Subject, "step", lambda self, model, settings: lambda: model(self.inputs(settings)))
    asked: list[str] = []

    def times(self: Subject, steps: Mapping[str, Any], *_: Any) -> dict[str, Timing]:
        asked.extend(steps)
        value = {name: 3.0 if "dense" in name else 1.0 if "without" in name else 2.0 for name in steps}
        return {name: Timing("cpu", "-", each, each, each, 9) for name, each in value.items()}

    monkeypatch.setattr(Subject, "times", times)
    model = fused(Net().eval())
    choice = {"conv": FUSED, "first": FUSED, "last": CIRCULANT}
    variants = [(choice, model), *unfused(model, choice, MERGED, Net())]
    base = Measured("uniform", Settings("fp32", "nchw", mode), Timing("cpu", "-", 3.0, 3.0, 3.0, 9))
    found = compare(subject(), variants, base, [base], [mode], selector(CPU, "eager", False))
    assert found.faster and ("without fused units" in " ".join(asked)) == wins
    assert found.choice == ({"last": CIRCULANT} if wins else choice)
    assert found.model is variants[wins][1]
    assert found.plan.timing is not None and found.plan.timing.median_us == (1.0 if wins else 2.0)


def test_settings_that_do_not_run_again_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    failing: set[str] = set()

    def times(self: Subject, steps: Mapping[str, Any], *_: Any) -> dict[str, Any]:
        fails = [name for name in steps if any(one in name for one in failing)]
        return {name: Timing("cpu", "-", 2.0, 2.0, 2.0, 9) for name in steps} | dict.fromkeys(fails, AssertionError())

    monkeypatch.setattr(Subject, "step", lambda self, model, settings: lambda: model(self.inputs(settings)))
    monkeypatch.setattr(Subject, "times", times)
    rows = [Measured("uniform", Settings("fp32", "nchw", mode), Timing("cpu", "-", 3.0, 3.0, 3.0, 9)) for mode in "ab"]
    variants = [({"last": CIRCULANT}, Net().eval())]
    failing = {"dense, fp32, a"}
    found = compare(subject(), variants, rows[0], rows, ["eager"], selector(CPU, "eager", False))
    assert [one.settings.mode for one in found.uniforms] == ["b"]
    assert "dense, fp32, a: AssertionError" in found.plan.reason
    failing.add("dense, fp32, b")
    found = compare(subject(), variants, rows[0], rows, ["eager"], selector(CPU, "eager", False))
    assert not found.faster and found.uniforms == tuple(rows) and "fp32, b: AssertionError" in found.reason


def measured(mode: str, time: float) -> Measured:
    return Measured("uniform", Settings("bf16", "nhwc", mode), Timing("wall", "warm", time, time, time, 9))


def test_a_plan_is_tried_in_the_modes_that_replay() -> None:
    wholes = [measured(mode, time) for mode, time in (("eager", 2.6), ("compiled", 2.1), ("graph", 2.4))]
    best = measured("reduce-overhead", 2.0)
    assert to_sequence([*wholes, best], best) == ["reduce-overhead", "graph"]
    assert to_sequence([*wholes[:2], replace(wholes[2], timing=None)], wholes[1]) == ["compiled", "eager"]

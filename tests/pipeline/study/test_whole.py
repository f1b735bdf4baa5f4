"""The whole network by a choice, in several modes."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

import pytest
import torch
from torch import nn

import lamina
from lamina import run
from lamina.pipeline.convert import selector
from lamina.pipeline.deft.calibration import material
from lamina.pipeline.study import whole
from lamina.pipeline.study.subject import Subject
from lamina.pipeline.study.whole import compare, to_sequence
from lamina.record import Timing
from lamina.record.study import Measured, Settings

CPU = torch.device("cpu")
FUSED, CIRCULANT = "fused[impl=reference]", "circulant[block_size=2]"


class Net(nn.Module):
    """A unit whose ReLU is called in other places too, one of a linear layer, and a layer beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu, self.pool = nn.Conv2d(1, 4, 5, stride=3), nn.ReLU(), nn.MaxPool2d(2)
        self.first, self.active, self.last = nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.relu(self.conv(x))).flatten(1)
        return self.last(self.relu(self.active(self.first(x))))  # type: ignore[no-any-return]


def subject() -> Subject:
    target, _ = lamina.pipeline.find("lenet5")
    parts = material("fashion-mnist", (1, 28, 28), 40, 0, CPU, target.train_test)
    return Subject("net", Net(), CPU, False, 4, parts, run.classification(10))


def test_the_fastest_variant_of_any_mode_is_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    times_us = {"fp32": 2.0, "fp32, 1 fused units": 1.5, "fp32, compiled": 1.0, "dense, fp32, compiled": 3.0}
    asked: list[str] = []

    def times(self: Subject, steps: Mapping[str, Any], *_: Any) -> dict[str, Timing]:
        asked.extend(steps)
        return {name: Timing("cpu", "-", times_us[name], times_us[name], times_us[name], 9) for name in steps}

    monkeypatch.setattr(Subject, "step", lambda self, model, settings: lambda: model(self.inputs(settings)))
    monkeypatch.setattr(Subject, "times", times)
    separate, units = {"last": CIRCULANT}, {"last": CIRCULANT, "conv": FUSED}
    one, two = Net().eval(), Net().eval()
    times_us = {
        name.replace("fp32", "fp32, eager") if "compiled" not in name else name: us for name, us in times_us.items()
    }
    base = Measured("uniform", Settings("fp32", "nchw", "compiled"), Timing("cpu", "-", 3.0, 3.0, 3.0, 9))
    variants = {"compiled": [(separate, one)], "eager": [(separate, one), (units, two)]}
    found = compare(subject(), variants, base, [base], selector(CPU, "eager", False))
    assert sorted(asked) == sorted(times_us)
    assert found.faster and found.choice == separate and found.model is one and found.plan.settings.mode == "compiled"
    times_us["fp32, eager, 1 fused units"] = 0.5
    found = compare(subject(), variants, base, [base], selector(CPU, "eager", False))
    assert found.choice == units and found.model is two and found.plan.settings.mode == "eager"


def test_networks_that_the_compiler_replays_are_timed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[tuple[str, list[str]]] = []

    def times(self: Any, steps: Mapping[str, Any], n: int, limit_s: float, mode: str = "eager") -> dict[str, Timing]:
        assert limit_s in (3.0 * len(steps), inf)
        rounds.append((mode, [*steps]))
        return {name: Timing("wall", "warm", 1.0, 1.0, 1.0, 9) for name in steps}

    monkeypatch.setattr(Subject, "times", times)

    def runner(mode: str) -> whole._Runner:
        return whole._Runner(Settings("fp32", "nchw", mode), Net(), print)

    runners = {"a": runner("graph"), "b": runner(whole.ALONE), "c": runner("eager"), "d": runner(whole.ALONE)}
    assert whole._in_turns(subject(), runners, 12.0).keys() == runners.keys()
    assert rounds == [("eager", ["a", "c"]), (whole.ALONE, ["b", "d"])]
    rounds.clear()
    assert whole._in_turns(subject(), {name: runners[name] for name in "ab"}, 6.0).keys() == {"a", "b"}
    assert rounds == [("eager", ["a", "b"])]
    assert whole._in_turns(subject(), {"a": runners["a"]}, inf).keys() == {"a"}


def test_settings_that_do_not_run_again_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    failing: set[str] = set()

    def times(self: Subject, steps: Mapping[str, Any], *_: Any) -> dict[str, Any]:
        fails = [name for name in steps if any(one in name for one in failing)]
        return {name: Timing("cpu", "-", 2.0, 2.0, 2.0, 9) for name in steps} | dict.fromkeys(fails, AssertionError())

    monkeypatch.setattr(Subject, "step", lambda self, model, settings: lambda: model(self.inputs(settings)))
    monkeypatch.setattr(Subject, "times", times)
    rows = [Measured("uniform", Settings("fp32", "nchw", mode), Timing("cpu", "-", 3.0, 3.0, 3.0, 9)) for mode in "ab"]
    variants = {"eager": [({"last": CIRCULANT}, Net().eval())]}
    failing = {"dense, fp32, a"}
    found = compare(subject(), variants, rows[0], rows, selector(CPU, "eager", False))
    assert [one.settings.mode for one in found.uniforms] == ["b"]
    assert "dense, fp32, a: AssertionError" in found.plan.reason
    failing.add("dense, fp32, b")
    found = compare(subject(), variants, rows[0], rows, selector(CPU, "eager", False))
    assert not found.faster and found.uniforms == tuple(rows) and "fp32, b: AssertionError" in found.reason


def measured(mode: str, time: float) -> Measured:
    return Measured("uniform", Settings("bf16", "nhwc", mode), Timing("wall", "warm", time, time, time, 9))


def test_a_plan_is_tried_in_the_modes_that_replay() -> None:
    wholes = [measured(mode, time) for mode, time in (("eager", 2.6), ("compiled", 2.1), ("graph", 2.4))]
    best = measured("reduce-overhead", 2.0)
    assert to_sequence([*wholes, best], best) == ["reduce-overhead", "graph"]
    assert to_sequence([*wholes[:2], replace(wholes[2], timing=None)], wholes[1]) == ["compiled", "eager"]

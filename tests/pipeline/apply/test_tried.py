"""A network by a plan, timed before and after."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lamina import pipeline, run
from lamina.pipeline.apply import describe_type, tried
from lamina.pipeline.apply.tried import Tried, try_plan
from lamina.record import Timing
from lamina.spec.plan import CAPTURED, Plan, PlannedLayer, Run

METHOD = "circulant[block_size=4,impl=reference]"


def tried_by(methods: dict[str, str], settings: Run, goal: str = "train", **options: Any) -> Tried:
    target, _ = pipeline.find("lenet5")
    layers = tuple(
        PlannedLayer(name=name, type=describe_type(module), method=methods[name])
        for name, module in target.make(10).named_modules()
        if name in methods
    )
    plan = Plan.model_validate({"network": "lenet5", "goal": goal, "batch": 2, "run": settings, "layers": layers})
    return try_plan(target, plan, Path("plan.toml"), **options)


@pytest.mark.parametrize("goal", ["train", "infer"])
def test_both_steps_are_timed(goal: str) -> None:
    found = tried_by({"classifier.0": METHOD}, Run(), goal)
    assert found.before and found.after and found.done.replaced == {"classifier.0": METHOD}
    assert all(one.grad is None for one in found.model.parameters())


def test_a_plan_that_changes_nothing_is_not_timed() -> None:
    found = tried_by({}, Run())
    assert found.before is found.after is None
    assert any("nothing to compare" in remark for remark in found.done.remarks)
    assert tried_by({}, Run(layout="nhwc")).after is not None


@pytest.mark.parametrize("captured", CAPTURED)
def test_a_plan_that_trains_in_cuda_graphs_is_timed_in_one(captured: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str]]] = []

    def timer(device: torch.device, mode: str) -> Any:
        def times(steps: dict[str, Any]) -> dict[str, Timing]:
            asked.append((mode, [*steps]))
            return {name: Timing("wall", "warm", 1.0, 1.0, 1.0, 9) for name in steps}

        return times

    monkeypatch.setattr(tried, "timer", timer)
    net, x = nn.Linear(4, 4), [torch.randn(2, 4)]
    apart, together = [("eager", ["before"]), (captured, ["after"])], [("eager", ["before", "after"])]
    for goal, expected in {"train": apart, "infer": together}.items():
        asked.clear()
        here: dict[str, Any] = {"network": "net", "goal": goal, "batch": 2, "run": {"mode": captured}, "layers": ()}
        plan = Plan.model_validate(here)
        tried._times("net", net, net, x, plan, torch.device("cuda"))
        assert asked == expected


def test_each_step_has_its_own_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def precision_mode(precision: str) -> Any:
        asked.append(precision)
        return torch.enable_grad()

    monkeypatch.setattr(run, "precision_mode", precision_mode)
    tried_by({}, Run(precision="tf32"))
    assert set(asked) == {"fp32", "tf32"}

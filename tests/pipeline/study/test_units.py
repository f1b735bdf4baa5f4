"""Fused units whose layers the network's code calls one by one: tried, planned, applied, saved and benched."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.pipeline.study.nets import normalized
from torch import nn

import lamina
from lamina.accelerate.methods.fusion.nn import FusedConv2d
from lamina.pipeline import bench, find
from lamina.pipeline.apply import PlanMismatch, describe_type
from lamina.pipeline.apply import save as save_folder
from lamina.pipeline.study import StudyConfig, layers, study
from lamina.pipeline.study.plans import Plans
from lamina.record.study import Trial
from lamina.spec import Workload
from lamina.spec.plan import Plan, PlannedLayer, Run
from lamina.spec.plan_file import write_plan
from lamina.spec.training import Training
from lamina.spec.whole_method import FOLD
from lamina.store import Store

NET = "tests.pipeline.study.nets:normalized"
FUSED = "fused[impl=reference]"


def plan(with_: tuple[str, ...] = ("pool",)) -> Plan:
    conv = describe_type(normalized().conv1)  # type: ignore[arg-type]
    layer = PlannedLayer(name="conv1", type=conv, method=FUSED, with_=with_)
    return Plan(network=NET, goal="infer", batch=2, run=Run(method=FOLD), layers=(layer,))


def planned(by: Plan) -> tuple[nn.Module, Any, torch.Tensor]:
    """The network, itself by a plan, and what the first computes of an input."""
    torch.manual_seed(0)
    dense = normalized().eval()
    x = torch.randn(2, 1, 28, 28)
    expected = dense(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlanMismatch)
        return dense, lamina.apply(dense, by), expected


def test_a_plan_replaces_the_layers_of_a_unit(tmp_path: Path) -> None:
    write_plan(plan(), tmp_path / "plan.toml")
    _, model, expected = planned(plan())
    assert isinstance(model.conv1, FusedConv2d) and type(model.pool) is nn.Identity and type(model.relu) is nn.ReLU
    torch.manual_seed(0)
    normalized()
    torch.testing.assert_close(model(torch.randn(2, 1, 28, 28)), expected)


def test_a_plan_without_the_others_of_a_unit_says_what_it_lacks() -> None:
    with pytest.warns(PlanMismatch, match="conv1: not selected"):
        lamina.apply(normalized().eval(), plan(()))


def test_a_saved_network_has_its_units(tmp_path: Path) -> None:
    target, _ = find(NET, input_size=(1, 28, 28))
    _, model, _ = planned(plan())
    save_folder(tmp_path, model, normalized().eval(), plan(), target, 10)
    loaded = lamina.load(tmp_path, normalized())
    x = torch.randn(3, 1, 28, 28)
    assert isinstance(loaded.conv1, FusedConv2d) and torch.equal(loaded(x), model(x))


def test_they_are_candidates_and_made_by_a_choice(
    tmp_path: Path, data: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    trained = Plans.trained

    def recorded(self: Plans, choice: Any) -> nn.Module:
        model = trained(self, choice)
        if choice:
            made.append(model)
        return model

    monkeypatch.setattr(Plans, "trained", recorded)

    def fused(one: Trial) -> bool:
        return one.impl == FUSED and one.timing is not None

    def first(*args: Any) -> Any:
        return [selected(one) if fused(one) else one for one in trials(*args)]

    def selected(one: Trial) -> Trial:
        assert one.timing is not None
        return replace(one, outcome="selected", dense_us=one.timing.median_us + 9)

    trials = layers.trials_of
    monkeypatch.setattr(layers, "trials_of", first)
    target, _ = find(NET, input_size=(1, 28, 28))
    config = StudyConfig(
        modes=("eager",), precisions=("fp32",), batch=4, calibration=20, rivals=False, methods=(FUSED,)
    )
    settings = Training(batch=20, learning_rate=0.05, warmup_steps=0)
    found = study(target, data, settings, store, tmp_path / "out", config, cache=tmp_path / "cache").study
    (trial,) = filter(fused, found.trials)
    assert trial.layer == "conv1" and [part.partition("(")[0] for part in trial.kind.split(" + ")] == [
        "Conv2d", "ReLU", "MaxPool2d"
    ]  # fmt: skip
    assert isinstance(made[0].conv1, FusedConv2d) and type(made[0].pool) is nn.Identity
    refused = {one.layer: one.reason for one in found.trials if one.outcome == "refused"}
    assert refused == {"conv2": "no ReLU follows it directly", "head": "no activation follows it directly"}


def test_a_bench_by_plan_has_a_row_for_each_unit(tmp_path: Path, store: Store) -> None:
    target, _ = find(NET, input_size=(1, 28, 28))
    workload = Workload.model_validate(
        {"phases": ["forward"], "batch": [2], "repeat": 1, "folded": True, "plan": {"conv1": FUSED}}
    )
    rows = store.layers(bench(target, workload, store, cache=tmp_path).id)
    units = {row.layer: row.executed_impl for row in rows if row.kind == "Conv2d + ReLU + MaxPool2d"}
    assert units == {"conv1 + relu + pool": FUSED}
    (whole,) = (row for row in rows if row.kind == "network")
    assert whole.executed_impl.endswith("(1 of 3 layers)") and whole.timing

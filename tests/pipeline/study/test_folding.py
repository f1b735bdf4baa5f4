"""BatchNorm of a network that infers: folded before anything else is tried, in the plan too."""

import copy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.pipeline.study.nets import normalized
from torch import nn

import lamina
from lamina.pipeline import bench, find
from lamina.pipeline.apply import PlanMismatch, replaced_by
from lamina.pipeline.apply.tried import try_plan
from lamina.pipeline.study import Studied, StudyConfig, study
from lamina.record.study import Settings
from lamina.spec import Workload
from lamina.spec.plan import Plan, Run
from lamina.spec.plan_file import read_plan
from lamina.spec.training import Training
from lamina.spec.whole_method import FOLD
from lamina.store import Store

SETTINGS = Training(batch=20, learning_rate=0.05, warmup_steps=0)
QUICK = StudyConfig(
    modes=("eager",), precisions=("fp32",), batch=4, calibration=20, train_epochs=1, rivals=False,
    max_accuracy_drop=100.0, methods=("eliminated[recovery=least_squares,keep=0.5]",),
)  # fmt: skip
NET = "tests.pipeline.study.nets:normalized"


def run(folder: Path, data: str, store: Store, config: StudyConfig = QUICK, network: str = NET) -> Studied:
    target, _ = find(network, input_size=(1, 28, 28))
    return study(target, data, SETTINGS, store, folder / "out", config, cache=folder / "cache")


@pytest.fixture
def studied(shared: Path, made: list[Studied], data: str, store: Store) -> Studied:
    if not made:
        made.append(run(shared, data, store))
    return made[0]


def planned(model: nn.Module, plan: Plan | Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlanMismatch)
        return lamina.apply(model, plan)


def test_settings_are_timed_with_and_without(studied: Studied) -> None:
    rows = {one.settings: one for one in studied.study.wholes if one.name != "plan"}
    eager = [Settings("fp32", layout, "eager", method) for layout in ("nchw", "nhwc") for method in ("dense", FOLD)]
    assert rows.keys() == {eager[0], eager[1], eager[3]}, "the fastest is the first again without"
    assert all(one.timing and one.accuracy is not None for one in (rows[eager[0]], rows[eager[1]]))
    assert rows[eager[0]].accuracy == rows[eager[1]].accuracy


def test_layers_have_methods_beside_it(studied: Studied) -> None:
    plan = read_plan(studied.folder)
    assert plan.run.method == FOLD
    changed = {one.name: one.method for one in plan.layers if one.method != "dense"}
    assert "head" in changed and all(method.startswith("eliminated") for method in changed.values())
    types = {one.name: one.type for one in plan.layers}
    assert "bias=False" in types["conv1"], "types are those of the user's network"
    assert {one.settings.method for one in studied.study.trials} == {FOLD}


def test_the_folder_and_a_plan_give_the_same_network(studied: Studied) -> None:
    x = torch.randn(3, 1, 28, 28)
    loaded: Any = lamina.load(studied.folder, normalized())
    assert type(loaded.bn1) is nn.Identity and loaded.conv1.bias is not None
    torch.manual_seed(0)
    with pytest.warns(PlanMismatch, match="not fitted to data"):
        other: Any = lamina.apply(normalized().eval(), studied.folder)
    assert type(other.bn2) is nn.Identity and other(x).shape == (3, 10)
    assert other.state_dict().keys() == loaded.state_dict().keys()


def test_the_network_of_the_study_gets_its_weights(tmp_path: Path, data: str, store: Store) -> None:
    torch.manual_seed(SETTINGS.seed)
    config = replace(QUICK, train_epochs=0, methods=("weight-only[format=half]",))
    folder = run(tmp_path, data, store, config).folder
    torch.manual_seed(SETTINGS.seed)
    dense = normalized().eval()
    x = torch.randn(3, 1, 28, 28)
    expected = dense(x)
    model = planned(copy.deepcopy(dense), folder)
    assert type(model.bn1) is nn.Identity
    torch.testing.assert_close(model(x), expected, rtol=1e-2, atol=1e-2)
    assert torch.equal(lamina.load(folder, copy.deepcopy(dense))(x), model(x))


def test_the_front_is_folded(tmp_path: Path, data: str, store: Store) -> None:
    folder = run(tmp_path, data, store, replace(QUICK, front=True)).folder
    model = lamina.load_front(folder, normalized())
    model.use(accuracy_drop=100.0)
    assert type(model.bn1) is nn.Identity and model(torch.randn(2, 1, 28, 28)).shape == (2, 10)


def test_a_network_without_normalization_says_so(tmp_path: Path, data: str, store: Store) -> None:
    found = run(tmp_path, data, store, network="tests.pipeline.study.nets:mlp").study
    (row,) = [one for one in found.wholes if one.settings.method == FOLD]
    assert (row.outcome, row.reason) == ("refused", "the network has no BatchNorm to fold")
    assert found.whole("plan").settings.method == "dense"


def test_what_trains_is_not_folded(tmp_path: Path, data: str, store: Store) -> None:
    config = replace(QUICK, goal="train", epochs=1, methods=("fused[impl=reference]",), batch=8)
    found = run(tmp_path, data, store, config).study
    assert not any(FOLD in one.settings.method for one in found.wholes)


PLAN = Plan(network="net", goal="infer", batch=2, run=Run(method=FOLD))


def test_a_plan_without_layers_folds() -> None:
    dense = normalized().eval()
    x = torch.randn(2, 1, 28, 28)
    expected = dense(x)
    model = planned(dense, PLAN)
    assert type(model.bn1) is nn.Identity
    torch.testing.assert_close(model(x), expected)


def test_a_model_that_cannot_be_folded_says_so() -> None:
    with pytest.warns(PlanMismatch, match="BatchNorm is not folded: the network has no BatchNorm to fold"):
        lamina.apply(nn.Sequential(nn.Linear(2, 2)), PLAN)


def test_what_a_plan_trains_is_not_folded() -> None:
    model, _ = replaced_by(normalized(), PLAN)
    assert type(model.bn1) is nn.BatchNorm2d


def test_a_saved_network_is_loaded_folded(tmp_path: Path) -> None:
    target, _ = find("resnet10")
    tried = try_plan(target, PLAN, tmp_path, classes=3, timed=False, output=tmp_path / "out")
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(lamina.load(tmp_path / "out")(x), tried.model.eval()(x))


def test_a_bench_of_a_plan_has_no_rows_for_it(tmp_path: Path, store: Store) -> None:
    target, _ = find(NET, input_size=(1, 28, 28))
    told: list[Any] = []
    for folded in (False, True):
        workload = Workload(phases=("forward",), batch=(2,), seconds=0.01, repeat=1, folded=folded)
        rows = store.layers(bench(target, workload, store, cache=tmp_path, watch=told.append).id)
        kinds = {row.kind for row in rows}
        assert ("batch_norm" in kinds) != folded, kinds
        assert all(row.outcome != "failed" for row in rows)


def test_a_network_of_a_function_is_saved_by_its_plan(tmp_path: Path) -> None:
    target, _ = find(NET, input_size=(1, 28, 28))
    tried = try_plan(target, PLAN, tmp_path, timed=False, output=tmp_path / "out")
    x = torch.randn(1, 1, 28, 28)
    assert torch.equal(lamina.load(tmp_path / "out", normalized())(x), tried.model.eval()(x))

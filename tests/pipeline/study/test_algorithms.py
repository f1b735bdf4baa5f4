"""Convolution algorithms as candidates of layers, and in plans."""

import copy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lamina
from lamina.build.modules import AlgorithmConvolution
from lamina.errors import UsageError
from lamina.pipeline import bench, find
from lamina.pipeline.apply import PlanMismatch, describe_type
from lamina.pipeline.apply import save as save_folder
from lamina.pipeline.study import StudyConfig, layers, study
from lamina.pipeline.study.algorithms import convolutions
from lamina.record.study import Settings, Trial
from lamina.spec import Method, Workload
from lamina.spec.plan import Plan, PlannedLayer
from lamina.spec.plan_file import read_plan
from lamina.spec.training import Training
from lamina.store import Store

FFT = Method.parse("dense:fft")
FP32 = Settings("fp32", "nchw", "eager")


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2), nn.Flatten())


def plan(methods: dict[str, str], goal: str = "infer", model: nn.Module | None = None) -> Plan:
    found = model or net()
    rows = [
        PlannedLayer(name=name, type=describe_type(found.get_submodule(name)), method=method)
        for name, method in methods.items()
    ]
    return Plan(network="net", goal=goal, batch=2, layers=tuple(rows))  # type: ignore[arg-type]


def refusals(model: nn.Module, method: Method = FFT, settings: Settings = FP32) -> dict[str, str | None]:
    return {name: refusal for name, _, refusal in convolutions(model, method, settings)}


def test_convolutions_alone_have_algorithms() -> None:
    assert refusals(net()) == {"0": None, "2": None}
    winograd = refusals(net(), Method.parse("dense:winograd"))
    assert winograd["0"] is None and winograd["2"] and "stride" in winograd["2"]


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_other_precisions_are_left_to_the_library(precision: str) -> None:
    found = refusals(net(), settings=Settings(precision, "nchw", "eager"))
    reason = f"in {precision} the library's autotuning selects among its own algorithms: strict fp32 only"
    assert found == {"0": reason, "2": reason}


def test_layers_that_no_method_replaces_stay() -> None:
    model = net()
    model[0].register_forward_hook(lambda *_: None)
    model[2].bias = nn.Parameter(model[0].bias.detach())
    assert refusals(model) == {"0": "it has hooks, which a new layer would lose", "2": None}


@pytest.mark.parametrize("algorithm", ["gemm", "fft", "winograd"])
def test_a_plan_applies_them(algorithm: str) -> None:
    dense, x = net().double(), torch.randn(2, 3, 9, 9, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlanMismatch)
        model: Any = lamina.apply(copy.deepcopy(dense), plan({"0": f"dense:{algorithm}"}, "train"))
    assert isinstance(model[0], AlgorithmConvolution) and type(model[2]) is nn.Conv2d
    torch.testing.assert_close(model(x), dense(x))
    for one in (model, dense):
        one(x).square().sum().backward()
    torch.testing.assert_close(model[0].weight.grad, dense[0].weight.grad)
    assert model.state_dict().keys() == dense.state_dict().keys()


def test_what_an_algorithm_does_not_support_stays() -> None:
    with pytest.warns(PlanMismatch, match="2: dense:winograd: "):
        model: Any = lamina.apply(net(), plan({"0": "dense:fft", "2": "dense:winograd"}))
    assert isinstance(model[0], AlgorithmConvolution) and type(model[2]) is nn.Conv2d
    with pytest.warns(PlanMismatch, match="unknown algorithm: did you mean 'fft'"):
        lamina.apply(net(), plan({"0": "dense:fftt"}))


def test_a_saved_network_has_them(tmp_path: Path) -> None:
    target, _ = find("lenet5")
    dense = target.make(10).eval()
    by = plan({"features.3": "dense:gemm"}, model=dense)
    model = lamina.apply(copy.deepcopy(dense), by)
    save_folder(tmp_path, model, dense, by, target, 10)
    loaded: Any = lamina.load(tmp_path)
    x = torch.randn(2, 1, 28, 28)
    assert isinstance(loaded.features[3], AlgorithmConvolution) and torch.equal(loaded(x), model(x))


def test_they_are_tried_selected_and_saved(
    tmp_path: Path, data: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer FLOPs are counted for an FFT, which has no formula."""
    tried: list[Trial] = []
    trials = layers.trials_of

    def recorded(*args: Any) -> Any:
        rows = trials(*args)
        tried.extend(rows)
        return rows

    monkeypatch.setattr(layers, "trials_of", recorded)
    config = StudyConfig(
        modes=("eager",), precisions=("fp32",), batch=4, calibration=20, rivals=False,
        methods=("dense:gemm", "dense:fft", "dense:winograd"),
    )  # fmt: skip
    target, _ = find("lenet5")
    settings = Training(batch=20, learning_rate=0.05, warmup_steps=0)
    done = study(target, data, settings, store, tmp_path / "out", config, cache=tmp_path / "cache")
    assert {one.layer for one in tried} == {"features.0", "features.3"}
    assert {one.impl for one in tried} == {"dense", "dense:gemm", "dense:fft", "dense:winograd"}
    assert all(one.outcome == "refused" for one in tried if one.impl == "dense:winograd")  # windows of 5 x 5
    chosen = {one.name: one.method for one in read_plan(done.folder).layers if one.method != "dense"}
    assert chosen and set(chosen.values()) == {"dense:fft"}
    before, after = done.study.whole("before"), done.study.whole("plan")
    assert after.accuracy == before.accuracy
    loaded: Any = lamina.load(done.folder)
    assert isinstance(loaded.get_submodule(next(iter(chosen))), AlgorithmConvolution)


def test_a_bench_by_plan_runs_them(tmp_path: Path, store: Store) -> None:
    target, _ = find("lenet5")
    workload = Workload.model_validate(
        {"phases": ["forward"], "batch": [2], "repeat": 1, "plan": {"features.3": "dense:fft"}}
    )
    rows = {row.layer: row for row in store.layers(bench(target, workload, store, cache=tmp_path).id)}
    assert rows["features.3"].executed_impl == "dense:fft" and rows["features.3"].timing


def test_limits_of_a_study_name_algorithms() -> None:
    offered = {str(one) for one in StudyConfig().offers()}
    assert {"dense:gemm", "dense:fft", "dense:winograd"} <= offered and "dense:direct" not in offered
    for method in ("dense", "dense:wino"):
        with pytest.raises(UsageError, match="dense"):
            StudyConfig(methods=(method,))
    assert [str(one) for one in replace(StudyConfig(), methods=("dense:fft",)).offers()] == ["dense:fft"]

"""Studies of training within a memory limit: compressed activations where nothing else fits."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.pipeline.study.test_subject import subject
from torch import nn

import lamina
from lamina import measure
from lamina.errors import UnsupportedError
from lamina.measure.memory import peak_memory
from lamina.pipeline import find, report
from lamina.pipeline.study import Studied, StudyConfig, study
from lamina.pipeline.study.subject import Subject
from lamina.pipeline.study.uniform import within
from lamina.record import Timing
from lamina.record.study import Measured, Settings
from lamina.report.study_markdown import study_markdown
from lamina.report.study_table import verdict
from lamina.spec.plan import Plan, Run
from lamina.spec.plan_file import read_plan
from lamina.spec.training import Training
from lamina.spec.whole_method import COMPRESSED, FOLD, compresses
from lamina.store import Store

QUICK = StudyConfig(
    goal="train", modes=("eager",), precisions=("fp32",), batch=8, epochs=1, calibration=20, rivals=False,
    max_accuracy_drop=100.0, methods=("circulant[block_size=4,impl=reference]",), layers=("classifier.0",),
)  # fmt: skip
EAGER, SAVING = Settings("fp32", "nchw", "eager"), Settings("fp32", "nchw", "eager", COMPRESSED)


def run(folder: Path, data: str, store: Store, config: StudyConfig = QUICK) -> Studied:
    settings = Training(batch=8, learning_rate=0.05, warmup_steps=0)
    target, _ = find("lenet5")
    return study(target, data, settings, store, folder / "out", config, cache=folder / "cache")


@pytest.fixture
def needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """9 MiB of a step, and 5 with compressed activations."""

    def facts(self: Subject, model: nn.Module, settings: Settings, step: Any) -> tuple[int, int, None]:
        return 1, (5 if compresses(settings.method) else 9) << 20, None

    monkeypatch.setattr(Subject, "facts", facts)


def test_compressed_activations_are_a_setting(tmp_path: Path, data: str, store: Store) -> None:
    found = run(tmp_path, data, store).study
    rows = {one.settings: one for one in found.wholes if one.name != "plan"}
    (one,) = (row for settings, row in rows.items() if compresses(settings.method))
    assert one.timing is not None and one.settings.mode == "eager"
    accuracies = {row.accuracy for row in rows.values() if row.accuracy is not None}
    assert len(accuracies) == 1, "their gradients are the same"


def test_what_needs_too_much_memory_is_refused(tmp_path: Path, data: str, store: Store, needs: None) -> None:
    studied = run(tmp_path, data, store, replace(QUICK, max_memory=8 << 20))
    found = studied.study
    rows = {one.settings.method: one for one in found.wholes if one.name != "plan"}
    assert (rows["dense"].outcome, rows["dense"].reason) == ("refused", "needs 9.00 MiB of 8.00 MiB")
    assert found.whole("plan").settings.method == COMPRESSED
    plan = read_plan(studied.folder)
    assert plan.run.method == COMPRESSED
    changed = [one.name for one in plan.layers if one.method != "dense"]
    assert changed == ["classifier.0"], "layers have methods beside it"
    assert "training" not in verdict(found) and "faster" not in verdict(found)


def test_a_plan_that_needs_too_much_is_not_kept(
    tmp_path: Path, data: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def facts(self: Subject, model: nn.Module, settings: Settings, step: Any) -> tuple[int, int, None]:
        planned = any("Circulant" in type(one).__name__ for one in model.modules())
        return 1, (9 if planned else 5) << 20, None

    monkeypatch.setattr(Subject, "facts", facts)
    done = run(tmp_path, data, store, replace(QUICK, max_memory=8 << 20))
    assert {one.method for one in read_plan(done.folder).layers} == {"dense"}
    assert any("needs 9.00 MiB of 8.00 MiB" in text for text in store.run(done.run_id).remarks)


def test_a_network_that_does_not_fit_at_all_is_refused(tmp_path: Path, data: str, store: Store, needs: None) -> None:
    with pytest.raises(UnsupportedError, match=r"fp32, eager: needs 9\.00 MiB of 4\.00 MiB; .*needs 5\.00 MiB"):
        run(tmp_path, data, store, replace(QUICK, max_memory=4 << 20))


def test_what_ran_out_of_memory_failed_and_is_compressed(
    tmp_path: Path, data: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Subject.step

    def scarce(self: Subject, model: nn.Module, settings: Settings) -> Callable[[], object]:
        if not compresses(settings.method):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return step(self, model, settings)

    monkeypatch.setattr(Subject, "step", scarce)
    studied = run(tmp_path, data, store)
    found = studied.study
    before = found.whole("before")
    assert (before.outcome, before.timing) == ("failed", None) and "out of memory" in before.reason
    assert found.whole("plan").settings.method == COMPRESSED and found.whole("plan").accuracy is not None
    assert verdict(found).startswith("the network does not run as it was (CUDA out of memory")
    assert store.study(studied.run_id) is not None
    page = report(store, studied.run_id, tmp_path / "study.html").read_text(encoding="utf-8")
    assert "out of memory" in page and "does not run as it was" in study_markdown(found)


def test_a_limit_is_in_the_reason() -> None:
    one = Measured("uniform", EAGER, Timing("wall", "warm", 1.0, 1.0, 1.0, 9), peak_bytes=9 << 30)
    assert within(one, None) is one and within(one, 9 << 30) is one
    assert within(one, 8 << 30).reason == "needs 9.00 GiB of 8.00 GiB"
    unknown = replace(one, peak_bytes=None)
    assert within(unknown, 1) is unknown


def test_a_step_of_either_holds_what_its_facts_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "peak_memory", peak_memory)
    target, _ = find("cifarnet")
    lenet = subject(training=True)
    one = replace(lenet, dense=target.make(10), batch=32)
    x = torch.randn(32, 3, 32, 32)
    monkeypatch.setattr(Subject, "inputs", lambda self, settings: x)
    peaks = []
    for settings in (EAGER, SAVING):
        model = one.at(one.dense, settings)
        step = one.step(model, settings)
        step()
        peaks.append(one.facts(model, settings, step)[1] or 0)
        held = sum(weight.nbytes for weight in model.parameters())
        assert peaks[-1] > 2 * held  # weights and momentum
    assert peaks[1] < 0.9 * peaks[0]


def test_compressed_activations_run_in_eager_mode() -> None:
    one = subject(training=True)
    with pytest.raises(UnsupportedError, match="compressed-activations: eager mode only"):
        one.step(one.dense, replace(SAVING, mode="compiled"))


def trained(model: nn.Module) -> tuple[Any, list[torch.Tensor]]:
    x = torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    model(x).square().sum().backward()
    return model, [one.grad for one in model.parameters() if one.grad is not None]


def test_a_plan_trains_with_the_same_gradients() -> None:
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3))
    plan = Plan(network="net", goal="train", batch=2, run=Run(method=COMPRESSED))
    model, found = trained(lamina.apply(copy.deepcopy(dense), plan))
    _, expected = trained(dense)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    saved = model._saved_activations
    assert saved.statistics.tensors.get("mask") == 1
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin.zero_grad()
        _, again = trained(twin)
        assert all(torch.equal(a, b) for a, b in zip(again, expected, strict=True))
        assert twin._saved_activations is not saved
    assert [*model.state_dict()] == [*dense.state_dict()]


def test_a_plan_to_infer_compresses_nothing() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    plan = Plan(network="net", goal="infer", batch=2, run=Run(method=f"{FOLD}+{COMPRESSED}"))
    model = lamina.apply(model, plan)
    model(torch.randn(2, 4)).sum().backward()
    assert "_saved_activations" not in vars(model)

"""study: a plan within the accuracy budget, that loads, applies and resumes."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from tests.pipeline.study.quick import QUICK, SETTINGS, run

import lamina
from lamina.pipeline import find
from lamina.pipeline.deft.learning import Learner
from lamina.pipeline.study import Studied, deciding, study, whole_times
from lamina.pipeline.study.plans import Plans
from lamina.pipeline.study.trials import OVER
from lamina.pipeline.watch import Working
from lamina.record import Run
from lamina.record.study import Settings
from lamina.spec.plan_file import parse_plan, read_plan
from lamina.store import Store, open_store


@pytest.fixture
def kept(shared: Path) -> Iterator[Store]:
    with open_store(shared / "lamina.db") as database:
        yield database


@pytest.fixture
def studied(shared: Path, made: list[Studied], data: str, kept: Store) -> Studied:
    if not made:
        made.append(run(shared, data, kept))
    return made[0]


def test_the_plan_is_faster_and_keeps_the_accuracy(studied: Studied, kept: Store) -> None:
    found = studied.study
    before, plan = found.whole("before"), found.whole("plan")
    assert plan.timing and before.timing and plan.timing.median_us < 0.9 * before.timing.median_us
    assert plan.accuracy is not None and before.accuracy is not None and plan.accuracy >= before.accuracy - 5
    chosen = [one for one in found.trials if one.outcome == "selected"]
    assert chosen and all("eliminated" in one.impl for one in chosen)
    assert kept.study(studied.run_id) == replace(found, trials=kept.trials(studied.run_id))
    assert kept.run(studied.run_id).status == "done"


def test_every_candidate_has_an_outcome_with_its_reason(studied: Studied) -> None:
    for one in studied.study.trials:
        assert one.reason, one
        assert (one.timing is not None) == (one.outcome in ("selected", "slower", "inaccurate")), one
    fused = [one for one in studied.study.trials if one.impl.startswith("fused") and one.timing]
    assert fused and all(one.outcome == "slower" for one in fused)  # the reference computes the same FLOPs


def test_the_plan_has_the_density_of_what_layers_read(studied: Studied) -> None:
    density = {one.name: one.density for one in read_plan(studied.folder).layers}
    assert all(one is not None and 0 < one <= 1 for one in density.values())
    assert min(one for one in density.values() if one) < 0.9  # behind a ReLU


def test_the_front_rises(studied: Studied) -> None:
    front = studied.study.front
    assert len(front) > 2 and front[-1].methods == {}
    assert [point.time_us for point in front] == sorted(point.time_us for point in front)


def test_the_prediction_is_near_the_measured_time(studied: Studied) -> None:
    found = studied.study
    timing = found.whole("plan").timing
    assert found.predicted_us and timing
    assert abs(found.predicted_us - timing.median_us) < 0.15 * timing.median_us


def test_the_folder_gives_the_network_back_bit_by_bit(studied: Studied, data: str) -> None:
    x = torch.randn(3, 1, 28, 28)
    first, second = lamina.load(studied.folder), lamina.load(studied.folder)
    assert torch.equal(first(x), second(x))
    plan = read_plan(studied.folder)
    changed = {one.name for one in plan.layers if one.method != "dense"}
    assert changed <= dict(first.named_modules()).keys() and changed
    assert sum(p.numel() for p in first.parameters()) < sum(p.numel() for p in find("lenet5")[0].make(2).parameters())


def test_a_second_study_trains_and_judges_nothing_again(
    tmp_path: Path, data: str, shared: Path, studied: Studied, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("trained again")

    monkeypatch.setattr(sys.modules[Plans.__module__], "hits", never)
    folder = copytree(shared, tmp_path / "again")
    with open_store(folder / "lamina.db") as store:
        again = run(folder, data, store)
    assert set(again.study.trials) == set(studied.study.trials)
    assert parse_plan(again.study.plan, "").layers == parse_plan(studied.study.plan, "").layers


def test_a_killed_study_goes_on(tmp_path: Path, data: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException): ...

    def killed(*_: Any, **__: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(deciding, "compare", killed)
        with pytest.raises(Killed):
            run(tmp_path, data, store)
    (dead,) = (one for one in store.runs() if one.verb == "study")
    assert dead.status == "failed" and store.trials(dead.id)
    learned: list[object] = []
    learn = Learner.learn

    def counted(*arguments: Any, **options: Any) -> Any:
        learned.append(arguments)
        return learn(*arguments, **options)

    monkeypatch.setattr(Learner, "learn", counted)
    done = run(tmp_path, data, store)
    assert not store.epochs(done.run_id)[2:], "the dense network was trained again"
    assert done.run_id == dead.id and store.run(done.run_id).status == "done"


def test_a_budget_that_is_spent_leaves_the_layers_dense(tmp_path: Path, data: str, store: Store) -> None:
    found = run(tmp_path, data, store, replace(QUICK, budget_s=1e-6)).study
    assert found.whole("plan").settings == Settings("fp32", "nchw", "eager")
    assert {one.reason for one in found.trials if one.outcome == "failed"} == {OVER}
    assert all(one.method == "dense" for one in parse_plan(found.plan, "").layers)


def test_a_mode_that_the_budget_does_not_cover_says_how_long_it_needs(
    tmp_path: Path, data: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_times, "COMPILE_S", 1e6)  # of 1e5, which no busy machine uses up
    config = replace(QUICK, modes=("eager", "compiled"), methods=("fused",), budget_s=1e5)
    found = run(tmp_path, data, store, config).study
    (row,) = (one for one in found.wholes if one.settings.mode == "compiled")
    assert row.timing is None and "it needs about 1000000 s, and the time budget of this stage has" in row.reason


def test_nothing_is_lost_that_the_budget_of_accuracy_forbids(tmp_path: Path, data: str, store: Store) -> None:
    found = run(tmp_path, data, store, replace(QUICK, max_accuracy_drop=0.0)).study
    before, plan = found.whole("before"), found.whole("plan")
    assert before.accuracy is not None and plan.accuracy is not None
    calibrated = {point.accuracy for point in found.front if not point.methods}
    chosen = {one.layer: one.impl for one in found.trials if one.outcome == "selected"}
    for point in found.front:
        if dict(point.methods) == chosen:
            assert point.accuracy >= max(calibrated)


def test_training_is_judged_by_training(tmp_path: Path, data: str, store: Store) -> None:
    config = replace(QUICK, goal="train", epochs=1, methods=("circulant[block_size=4,impl=reference]",), batch=8)
    found = run(tmp_path, data, store, config).study
    assert found.metric == "accuracy" and found.whole("before").accuracy is not None
    timed = {one.impl for one in found.trials if one.timing is not None}
    assert timed == {"dense", "circulant[block_size=4,impl=reference]"}
    assert parse_plan(found.plan, "").goal == "train"


def test_a_network_of_a_function(tmp_path: Path, data: str, store: Store) -> None:
    target, _ = find("tests.pipeline.study.nets:mlp", input_size=(1, 28, 28))
    found = study(target, data, SETTINGS, store, tmp_path / "out", QUICK, cache=tmp_path / "cache").study
    assert found.network == "tests.pipeline.study.nets:mlp" and found.trials


def test_a_recurrent_layer_has_candidates(tmp_path: Path, data: str, store: Store) -> None:
    target, _ = find("tests.pipeline.study.nets:rows", input_size=(1, 28, 28))
    found = study(target, data, SETTINGS, store, tmp_path / "out", QUICK, cache=tmp_path / "cache").study
    tried = {one.impl for one in found.trials if one.layer == "lstm" and one.timing}
    assert any(impl.startswith("eliminated") for impl in tried)


def test_runs_of_a_study_are_read_by_id(studied: Studied, shared: Path) -> None:
    with open_store(shared / "lamina.db") as again:
        this: Run = again.run(studied.run_id)
        assert this.verb == "study" and this.config["study"]["goal"] == "infer"


def test_the_front_is_saved_and_switches(tmp_path: Path, data: str, store: Store) -> None:
    found = run(tmp_path, data, store, replace(QUICK, front=True))
    model = lamina.load_front(found.folder)
    x = torch.randn(2, 1, 28, 28)
    assert torch.equal(model(x), lamina.load(found.folder)(x))
    assert model.use(accuracy_drop=100.0).time_us == min(point.time_us for point in found.study.front)
    assert model.use(accuracy_drop=0.0).accuracy >= max(p.accuracy for p in found.study.front if not p.methods)


def test_what_ended_an_earlier_process_does_not_run_again(tmp_path: Path, data: str, store: Store) -> None:
    reason = "it ended its process (SIGSEGV)"
    lost = {("fp32, channels-last, eager", "study"): reason, ("classifier.0, fused", "study"): reason}
    told: list[Any] = []
    found = run(tmp_path, data, store, lost=lost, watch=told.append).study
    (setting,) = [one for one in found.wholes if one.settings.layout == "nhwc"]
    assert (setting.outcome, setting.timing, setting.reason) == ("failed", None, reason)
    refused = {f"{trial.layer}, {trial.impl}" for trial in found.trials if trial.reason == reason}
    assert refused == {"classifier.0, fused"}
    ran = {event.layer for event in told if isinstance(event, Working)}
    assert "features.0, fused" in ran and not ran & {what for what, _ in lost}


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # copies of TorchScript's parameters are no leaves
def test_scripted_parts_stay_as_they_are(tmp_path: Path, data: str, store: Store) -> None:
    target, _ = find("tests.pipeline.study.nets:scripted", input_size=(1, 28, 28))
    found = study(target, data, SETTINGS, store, tmp_path / "out", QUICK, cache=tmp_path / "cache").study
    assert any(one.layer == "2" and one.timing for one in found.trials)
    assert not any(one.layer.startswith("1") and one.timing for one in found.trials)

"""Accuracy at uniform settings: which are judged, and with what verdict."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.pipeline.study.quick import QUICK, run
from tests.pipeline.study.test_subject import subject

from lamina.errors import LaminaError
from lamina.pipeline.study import StudyConfig
from lamina.pipeline.study import judged as module
from lamina.pipeline.study.budget import Budget
from lamina.pipeline.study.judged import Judged, judge, scores_classes
from lamina.record import Timing
from lamina.record.study import Measured, Settings
from lamina.store import Store


def test_the_fastest_setting_is_judged_whatever_the_time(
    tmp_path: Path, data: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "over", True)
    found = run(tmp_path, data, store, replace(QUICK, precisions=("bf16",))).study
    judged = [one.settings.precision for one in found.wholes if one.accuracy is not None]
    assert "bf16" in judged, judged


def test_without_labels_the_error_of_the_outputs_is_limited(tmp_path: Path, store: Store) -> None:
    found = run(tmp_path, "synthetic", store, replace(QUICK, train_epochs=0)).study
    assert found.metric == "output error"
    plan, before = found.whole("plan"), found.whole("before")
    assert before.accuracy == pytest.approx(100, abs=1e-3)
    assert plan.accuracy is not None and plan.accuracy > 90  # the budget holds on the calibration samples


def measured(precision: str, time_us: float | None, method: str = "dense") -> Measured:
    timing = None if time_us is None else Timing("wall", "warm", time_us, time_us, time_us, 9)
    return Measured("uniform", Settings(precision, "nchw", "eager", method), timing)


def judged(
    monkeypatch: pytest.MonkeyPatch,
    wholes: list[Measured],
    accuracies: dict[str, Any],
    over: bool = False,
    config: StudyConfig | None = None,
    again: dict[str, Any] | None = None,
) -> tuple[Judged, list[str]]:
    """The verdicts, and the precisions whose accuracy was asked for, in order; ``again`` is of second trainings."""
    asked: list[str] = []

    def accuracy(context: object, settings: Settings, test: bool = False, repeat: int = 0) -> float:
        asked.append(settings.precision)
        found: Any = (again or {} if repeat else accuracies)[settings.precision]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(module, "accuracy_at", accuracy)
    context: Any = SimpleNamespace(
        config=config or StudyConfig(max_accuracy_drop=1.0),
        budget=SimpleNamespace(over=over),
        watch=lambda _: None,
        scored=True,
        subject=SimpleNamespace(material=SimpleNamespace(calibration=range(1000))),
    )
    return judge(context, wholes), asked


def test_settings_are_judged_until_one_keeps_the_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    wholes = [measured("fp32", 9.0), measured("tf32", 4.0), measured("fp16", 2.0), measured("bf16", 3.0)]
    found, asked = judged(monkeypatch, wholes, {"fp32": 90.0, "fp16": 80.0, "bf16": 89.5})
    assert asked == ["fp32", "fp16", "bf16"] and found.reference == 90.0
    rows = {one.settings.precision: (one.outcome, one.accuracy, one.reason) for one in found.wholes}
    assert [*rows] == ["fp32", "tf32", "fp16", "bf16"]
    assert rows["fp16"] == ("inaccurate", 80.0, "loses 10.00 points")
    assert rows["tf32"] == ("slower", None, "another setting was faster")
    assert found.best.settings.precision == found.base.settings.precision == "bf16"


def test_trainings_that_chance_may_explain_are_repeated_and_their_means_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    wholes = [measured("fp32", 9.0), measured("fp16", 2.0), measured("bf16", 3.0)]
    accuracies = {"fp32": 80.0, "fp16": 76.0, "bf16": 78.0}  # two trainings of 1000 samples differ by 1.8 points
    training = StudyConfig(goal="train", epochs=1, max_accuracy_drop=1.0)
    again = {"fp32": 79.0, "bf16": 79.5}
    found, asked = judged(monkeypatch, wholes, accuracies, config=training, again=again)
    assert asked == ["fp32", "fp16", "bf16", "bf16", "fp32"]
    assert [one.outcome for one in found.wholes[1:]] == ["inaccurate", "slower"]
    assert (found.wholes[2].reason, found.wholes[2].accuracy) == ("loses 0.75 points, the mean of two trainings", 78.75)
    assert found.best.settings.precision == "bf16" and found.reference == 80.0

    found, _ = judged(monkeypatch, wholes, accuracies, config=training, again={"fp32": 80.0, "bf16": 79.0})
    assert found.wholes[2].reason == "loses 1.50 points, the mean of two trainings"
    assert found.best.settings.precision == "fp32"
    found, _ = judged(monkeypatch, wholes, accuracies, config=training, again={"bf16": LaminaError("the loss is nan")})
    assert (found.wholes[2].outcome, found.wholes[2].reason) == ("failed", "the loss is nan")
    assert found.best.settings.precision == "fp32"
    for without in ({"config": training, "over": True}, {}):  # no time; to infer
        found, asked = judged(monkeypatch, wholes[::2], {"fp32": 80.0, "bf16": 78.0}, again=again, **without)
        assert found.best.settings.precision == "fp32" and asked == ["fp32", "bf16"]


def test_without_time_the_fastest_alone_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    wholes = [measured("fp32", 9.0), measured("fp16", 2.0), measured("bf16", 3.0)]
    found, asked = judged(monkeypatch, wholes, {"fp32": 90.0, "fp16": 80.0}, over=True)
    assert asked == ["fp32", "fp16"] and found.best.settings.precision == "fp32"
    assert found.wholes[2].reason == "the time budget was spent before its accuracy"


def test_what_fails_has_no_time_and_the_first_that_runs_is_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    wholes = [measured("fp32", None), measured("fp16", 2.0), measured("bf16", 3.0)]
    found, _ = judged(monkeypatch, wholes, {"fp16": LaminaError("the loss is nan"), "bf16": 70.0})
    assert (found.wholes[1].outcome, found.wholes[1].timing, found.wholes[1].reason) == (
        "failed", None, "the loss is nan"
    )  # fmt: skip
    assert found.reference == 70.0 and found.best.settings.precision == "bf16"


def test_methods_of_layers_begin_without_those_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    rival = measured("bf16", 1.0, "torchao:int8-weight-only")
    found, _ = judged(monkeypatch, [measured("fp32", 9.0), rival, measured("tf32", 1.1)], dict.fromkeys(
        ("fp32", "bf16", "tf32"), 90.0
    ))  # fmt: skip
    assert found.best.settings.method == "torchao:int8-weight-only" and found.base.settings.precision == "tf32"


def test_outputs_of_synthetic_labels_are_no_scores() -> None:
    assert not scores_classes(subject(training=False))

"""Plans along the front: which are accepted."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import sqrt
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.pipeline.study.quick import QUICK, run

from lamina.errors import LaminaError
from lamina.pipeline.study import StudyConfig, front
from lamina.pipeline.study.combine import Candidate
from lamina.pipeline.study.plans import Plans
from lamina.spec.plan_file import read_plan
from lamina.store import Store


def test_a_plan_whose_training_fails_is_not_accepted(
    tmp_path: Path, data: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Plans.trained

    def failing(self: Plans, choice: Any) -> torch.nn.Module:
        if choice:
            raise LaminaError("step 7: the loss is nan; lower the learning rate")
        return whole(self, choice)

    monkeypatch.setattr(Plans, "trained", failing)
    done = run(tmp_path, data, store)
    assert {one.method for one in read_plan(done.folder).layers} == {"dense"}
    assert any("the loss is nan" in remark for remark in store.run(done.run_id).remarks)
    assert store.run(done.run_id).status == "done"


def test_training_on_synthetic_data_keeps_what_changes_results_out(tmp_path: Path, store: Store) -> None:
    config = replace(QUICK, goal="train", epochs=1, methods=("circulant[block_size=4,impl=reference]",))
    found = run(tmp_path, "synthetic", store, config).study
    assert not [one for one in found.trials if one.outcome == "selected"]


def furthest(
    monkeypatch: pytest.MonkeyPatch, losses: Sequence[float], errors: Sequence[float], limit: float = 1.0
) -> tuple[int, list[str], list[str]]:
    """The index of the plan that is found where plans lose these points, what is watched, and the notes."""
    monkeypatch.setattr(front, "accuracy_at", lambda *_: 90.0)
    plans: Any = SimpleNamespace(
        metric="accuracy",
        accuracy=lambda choice: 90.0 - losses[len(choice)],
        standard_error=lambda choice: errors[len(choice)],
    )
    watched: list[str] = []
    notes: list[str] = []
    context: Any = SimpleNamespace(
        config=StudyConfig(max_accuracy_drop=limit),
        budget=SimpleNamespace(covers=lambda _: True),
        watched=lambda *_: nullcontext(),
        watch=watched.append,
        note=notes.append,
        subject=SimpleNamespace(material=SimpleNamespace(calibration=range(1000))),
    )
    judged: Any = SimpleNamespace(base=SimpleNamespace(time_us=9.0, settings=None), reference=90.0)
    candidates = [Candidate(dict.fromkeys(map(str, range(index)), "eliminated"), 0.0) for index in range(len(losses))]
    return front._probed(context, plans, candidates, judged, 1.0)[0], watched, notes


def test_the_loss_plus_one_standard_error_is_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    index, watched, notes = furthest(monkeypatch, [0, 0.25, 0.75, 2], [0, 0.5, 0.5, 0.5])
    assert index == 1
    assert "1 layers changed: accuracy 89.75 %, 0.25 ± 0.50 points lost, within the budget" in watched
    assert "2 layers changed: accuracy 89.25 %, 0.75 ± 0.50 points lost, beyond the budget" in watched
    assert notes == [
        "2 layers changed lose 0.75 ± 0.50 points, which may be more than 1: more calibration samples than 1000, or a "
        "larger --max-accuracy-drop, may allow that plan"
    ]
    index, watched, notes = furthest(monkeypatch, [0, 0.25, 0.75, 2], [0, 0, 0, 0])
    assert index == 2 and not notes
    assert "2 layers changed: accuracy 89.25 %, within the budget" in watched


def test_plans_that_lose_nothing_are_kept_however_few_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    index, _, notes = furthest(monkeypatch, [0, -0.5, 0, 0.5], [0, 3, 3, 3])
    assert index == 2 and len(notes) == 1


def test_plans_seldom_lose_more_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of simulated networks that answer a thousand samples, each plan 7 % of them in another way than the dense one."""
    random, samples, different = Random(0), 1000, 0.07

    def beyond(factor: float) -> float:
        """How often the plan that is found loses more than a point, of all samples that there are."""
        count = 0
        for _ in range(300):
            true = [index / 3 for index in range(16)]
            losses, errors = [0.0], [0.0]
            for lost in true[1:]:
                answers = random.choices([1, -1], [different + lost / 100, different - lost / 100], k=70)
                mean = sum(answers) / samples
                losses.append(100 * mean)
                errors.append(factor * 100 * sqrt((70 / samples - mean**2) / samples))
            count += true[furthest(monkeypatch, losses, errors)[0]] > 1
        return count / 300

    assert beyond(1) < 0.15 < 0.3 < beyond(0)

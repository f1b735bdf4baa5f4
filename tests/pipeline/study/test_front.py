"""Plans along the front: which are accepted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.pipeline.study.quick import QUICK, run

from lamina.errors import LaminaError
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

"""Wrong settings of a model are refused by name in one readable line each; readers of files reword them themselves."""

import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from lamina.errors import SpecError, UsageError
from lamina.spec import Input, Network, Workload
from lamina.spec.layers import Linear
from lamina.spec.plan import Plan
from lamina.spec.training import Training
from lamina.spec.validated import Validated


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (Workload, {"batch": 0}, "Workload: batch = 0: expected a list"),
        (Workload, {"batch": [0]}, "Workload: batch (item 1) = 0: expected at least 1"),
        (Workload, {"precision": ["fp31"]}, "Workload: precision (item 1) = 'fp31': did you mean 'fp32'?"),
        (Workload, {"bach": 3}, "Workload: key 'bach' is unknown: did you mean 'batch'?"),
        (Workload, {"impl": ["spars"]}, "Workload: implementation 'spars' is unknown: did you mean 'sparse'?"),
        (Training, {"epochs": "many"}, "Training: epochs = 'many': expected a whole number"),
        (Training, {"momentum": 1}, "Training: momentum = 1: expected less than 1"),
        (Training, {"learning_rate": 0}, "Training: learning_rate = 0: expected more than 0"),
        (Linear, {"name": "fc"}, "Linear: out_features is missing"),
        (Input, {"shape": ()}, "Input: shape = []: expected at least 1 items"),
        (Plan, {"network": "n", "goal": "train", "batch": 1, "run": {"mode": "fast"}}, "Plan: run.mode = 'fast': "),
    ],
)
def test_a_wrong_setting_is_refused_by_name(model: type[Validated], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        model(**settings)
    assert str(refused.value).startswith(message)
    assert len(str(refused.value).splitlines()) == 1


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(SpecError) as refused:
        Training(epochs=0, batch=0)
    assert str(refused.value).splitlines() == [
        "Training: epochs = 0: expected at least 1",
        "Training: batch = 0: expected at least 1",
    ]


def test_readers_of_files_get_the_faults_to_reword() -> None:
    with pytest.raises(ValidationError) as refused:
        Network.model_validate({"name": 3, "inputs": [{"shape": [2], "low": -1}, Input(shape=(2,))], "layers": []})
    places = {fault["loc"] for fault in refused.value.errors()}
    assert {("name",), ("inputs", 0, "low"), ("layers",)} <= places


def test_settings_never_change_and_can_be_copied() -> None:
    training = Training(epochs=2)
    assert pickle.loads(pickle.dumps(training)) == training == training.model_copy()
    with pytest.raises(ValidationError, match="frozen"):
        training.epochs = 3  # type: ignore[misc]

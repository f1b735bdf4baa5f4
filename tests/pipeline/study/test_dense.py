"""The dense network of a study, and what trains it."""

from pathlib import Path

import pytest
import torch
from tests.pipeline.study.quick import QUICK, SETTINGS, run
from torch import nn

from lamina.errors import UnsupportedError, UsageError
from lamina.pipeline import find
from lamina.pipeline.deft.calibration import material
from lamina.pipeline.study import study
from lamina.pipeline.study.budget import Budget
from lamina.pipeline.study.dense import dense_network, make_learner
from lamina.store import Store


def test_weights_of_another_network_are_refused(tmp_path: Path, data: str, store: Store) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(UsageError, match="weights of this network"):
        run(tmp_path, data, store, weights=tmp_path / "other.safetensors")


def test_a_network_that_cannot_be_copied_is_refused(tmp_path: Path, data: str, store: Store) -> None:
    target, _ = find("tests.pipeline.study.nets:Uncopyable", input_size=(1, 28, 28))
    with pytest.raises(UnsupportedError, match=r"copies of the network, but copy\.deepcopy raises TypeError"):
        study(target, data, SETTINGS, store, tmp_path / "out", QUICK, cache=tmp_path / "cache")


def test_a_network_of_another_dtype_is_studied_in_float32(tmp_path: Path, store: Store) -> None:
    target, _ = find(nn.Linear(6, 10).double(), input_size=(6,))
    parts, cpu, notes = material("synthetic", (6,), 20, 0, load=target.train_test), torch.device("cpu"), list[str]()
    learner = make_learner(SETTINGS, QUICK, parts, cpu, store, "", print, notes.append)
    network = dense_network(target, learner, QUICK, None, tmp_path / "checkpoint", Budget(None))
    assert network.weight.dtype == torch.float32
    assert notes == ["Linear: its weights are float64 and are converted to fp32"]

"""The benchmark of trainings runs where there is no GPU, and sums up what it saw rightly."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import sparse_training
from lamina.accelerate.sparsity.monitor import Observation


def test_smoke_writes_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATA", raising=False)
    monkeypatch.setattr(sys, "argv", ["sparse_training", "smoke", "--output", str(tmp_path), "--commit", "0123abc"])
    sparse_training.main()
    (path,) = tmp_path.iterdir()
    document = json.loads(path.read_text(encoding="utf-8"))
    dense, adaptive, watched = document["rows"]
    assert (dense["impl"], adaptive["impl"], adaptive["over_dense"] > 0) == ("dense", "adaptive", True)
    assert adaptive["deterministic"]["same_bits"] == adaptive["all_dense"] is True
    assert set(adaptive["choices"]) == {"features.0", "features.4"}
    assert len(dense["losses"]) > 10 and {len(each) for each in watched["densities"].values()} == {12}
    assert document["summary"]["zeros while training: lenet5"]["sampled trend apart, at most:"] < 0.2


def test_sources_are_what_convolutions_read() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(2, 2, 1), nn.ReLU())
    model.append(nn.Conv2d(2, 1, 1))
    assert sparse_training.sources(model, torch.randn(1, 1, 8, 8)) == {"3": "2", "5": "4"}


def observation(iteration: int, nonzeros: int) -> Observation:
    return Observation("a", iteration, 10, 10, nonzeros, 10, 10, {})


def test_a_trend_is_held_to_the_whole_one() -> None:
    whole = [observation(i, 50 + i) for i in range(21)]
    assert sparse_training.apart(whole, [whole[i] for i in (0, 1, 10, 11, 18, 19)], "a", 2) == pytest.approx(0)
    flat = [observation(i, 50) for i in (0, 1, 10, 11)]
    # Means over two iterations are at 0.505 and grow by a hundredth each; the sampled ones stay at a half.
    assert sparse_training.apart(whole, flat, "a", 2) == pytest.approx(0.005 + 0.05)

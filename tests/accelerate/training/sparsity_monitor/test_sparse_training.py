"""The benchmark of trainings runs where there is no GPU, and sums up what it saw rightly."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import sparse_training
from benchmarks.published import statements
from benchmarks.results import FOLDER
from lamina.accelerate.training.sparsity_monitor import Observation
from lamina.pipeline.reproduce.measured import zeros


def test_smoke_writes_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATA", raising=False)
    monkeypatch.setattr(sys, "argv", ["sparse_training", "smoke", "--output", str(tmp_path)])
    monkeypatch.setattr("benchmarks.source.commit", lambda: "0123abc")
    sparse_training.main()
    (path,) = tmp_path.iterdir()
    document = json.loads(path.read_text(encoding="utf-8"))
    dense, adaptive, watched = document["rows"]
    assert (dense["impl"], adaptive["impl"], adaptive["over_dense"] > 0) == ("dense", "adaptive", True)
    assert adaptive["deterministic"]["same_bits"] == adaptive["all_dense"] is True
    assert set(adaptive["choices"]) == {"features.0", "features.4"}
    # In each of three rounds, the clock calls the step before it times it.
    assert len(dense["losses"]) >= 3 * 2 and {len(each) for each in watched["densities"].values()} == {12}
    assert document["summary"]["zeros while training: lenet5"]["sampled trend apart, at most:"] < 0.2
    before = path.read_text(encoding="utf-8")
    monkeypatch.setattr(sparse_training, "compared", None)  # nothing is measured again at this commit
    monkeypatch.setattr(sparse_training, "watched", None)
    sparse_training.main()
    assert path.read_text(encoding="utf-8") == before
    assert sparse_training.earlier("sparse_training_smoke", "cpu", tmp_path) == document["rows"]
    monkeypatch.setattr("benchmarks.source.commit", lambda: "4567def")
    assert sparse_training.earlier("sparse_training_smoke", "cpu", tmp_path) == []


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


def watched(
    network: str, course: list[float], *more: list[float], gaps: tuple[int, ...] = (), apart: float = 0.01
) -> Any:
    """The row of a training, of which each map has a course; samples come two at a time, ``gaps`` apart."""
    begins = [sum(gaps[:i]) for i in range(len(gaps) + 1)]
    courses = {str(i): one for i, one in enumerate((course, *more))}
    return {
        "workload": network, "densities": courses, "trend_apart": dict.fromkeys(courses, apart),
        "sampled": {name: [[at + i, 0.5] for at in begins for i in (0, 1)] for name in courses},
    }  # fmt: skip


STEADY, FALLING, LATE = [0.5] * 8, [0.7, 0.6, 0.5, 0.4, 0.3, 0.3, 0.3, 0.3], [0.5] * 7 + [0.3]


@pytest.mark.parametrize(
    ("name", "holding", "failing"),
    [
        ("alexnet_maps_differ", watched("alexnet", STEADY, FALLING), watched("alexnet", STEADY)),
        ("alexnet_neighbours_are_alike", watched("alexnet", STEADY), watched("alexnet", FALLING)),
        ("alexnet_zeros_increase_then_stay", watched("alexnet", FALLING), watched("alexnet", LATE)),
        ("vgg11_trend_is_followed", watched("vgg11_cifar", STEADY), watched("vgg11_cifar", STEADY, apart=0.03)),
        (
            "alexnet_periods_grow",
            watched("alexnet", STEADY, gaps=(50,) * 11 + (100,)),
            watched("alexnet", STEADY, gaps=(50,) * 12),
        ),
    ],
)
def test_what_is_read_off_figures_is_looked_for(name: str, holding: Any, failing: Any) -> None:
    assert zeros.RULES[name]([holding])[1] is True
    assert zeros.RULES[name]([holding, failing])[1] is False  # the last one counts


def test_a_short_training_cannot_tell_of_periods() -> None:
    with pytest.raises(ValueError, match="expected more than 10 periods, got 3"):
        zeros.RULES["vgg11_periods_grow"]([watched("vgg11_cifar", STEADY, gaps=(50,) * 3)])


def test_what_holds_on_an_h200() -> None:
    path = max(FOLDER.glob("sparse_training_nvidia-h200_*.json"))
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    found = statements("activation-zeros", rows)
    assert [(one["entry"].rpartition(".")[2], one["holds"]) for one in found] == [
        ("14", True), ("14", None), ("15", True), ("15", None), ("2", True), ("2", True), ("2", False)
    ]  # fmt: skip
    assert found[-1]["ours"] == "5 of 7 maps"


@pytest.mark.gpu
def test_iterations_of_a_graph_are_watched_like_eager_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    scope = replace(sparse_training.SCOPES["smoke"], device="cuda")
    network = sparse_training.Network("lenet5", (1, 28, 28), 8, 40)
    data, of = sparse_training.images(None)
    eager = sparse_training.watched(data, of, network, scope)
    monkeypatch.setattr(sparse_training, "LONG", 1)
    graph = sparse_training.watched(data, of, network, scope)
    for name, densities in eager["densities"].items():
        assert graph["densities"][name] == pytest.approx(densities, abs=0.02)
    assert all(graph["sampled"].values()) and graph["sampled"].keys() == eager["sampled"].keys()

"""What learning costs is told of the runs that ended, and a run cut short is told too."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.circulant_training import processes
from benchmarks.circulant_training.experiments import BLOCK_SIZES, SEEDS, SMOKE
from benchmarks.circulant_training.processes import all_learnt, idlest, resumed, runs
from benchmarks.results import Row
from lamina.pipeline.reproduce.measured.accuracy import accuracies


def row(block_size: int, seed: int, epoch: int, accuracy: float) -> dict[str, Any]:
    return {
        "workload": "net", "block_size": block_size, "seed": seed, "epoch": epoch, "epochs": 2,
        "test_accuracy": accuracy, "parameters": 1000 // block_size, "train_loss": 1 - accuracy, "train_accuracy": 0.0,
        "test_loss": 2 - accuracy, "network": "net", "seconds": float(epoch), "precision": "tf32",
    }  # fmt: skip


ROWS = [
    row(1, 0, 1, 0.5), row(1, 0, 2, 0.9), row(1, 1, 1, 0.7), row(1, 1, 2, 0.8),
    row(10, 0, 1, 0.4), row(10, 0, 2, 0.84), row(10, 1, 1, 0.1),
]  # fmt: skip


def test_accuracies_are_means_of_the_runs_that_ended() -> None:
    found = accuracies(runs(ROWS))
    assert [[*form.values()] for form in found.values()] == [
        [85.0, 5.0, 0.0, 1000, 1.0, 2, 2, 1.5],
        [84.0, 0.0, -1.0, 100, 10.0, 1, 2, 1.5],
    ]
    assert [*found] == ["net, dense", "net, k=10"]
    alone = accuracies(runs([row(10, 0, 1, 0.4), row(10, 0, 2, 0.84)]))
    assert alone["net, k=10"]["points of dense"] is None


def test_a_run_is_its_epochs_in_turn() -> None:
    whole = runs(ROWS[::-1])
    assert all(Row.model_validate(run | {"batch": 8}) for run in whole)
    found = {(one["block_size"], one["seed"]): one["test_accuracy"] for one in whole}
    times = {(one["block_size"], one["seed"]): (one["median_us"], one["n"]) for one in whole}
    assert all(one["parameters"] == 1000 // one["block_size"] for one in whole)
    assert found == {(1, 0): [0.5, 0.9], (1, 1): [0.7, 0.8], (10, 0): [0.4, 0.84], (10, 1): [0.1]}
    assert times == {(1, 0): (1.5e6, 2), (1, 1): (1.5e6, 2), (10, 0): (1.5e6, 2), (10, 1): (1e6, 1)}


def test_runs_that_time_does_not_suffice_for_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "ProcessPoolExecutor", lambda workers, _: ThreadPoolExecutor(workers))
    rows, failed = all_learnt(SMOKE, tmp_path, "cpu", seconds=0, workers=1)
    assert rows == []
    forms = ["dense", *(f"k={size}" for size in BLOCK_SIZES[1:])]
    assert failed == [f"lenet5 fashion-mnist {form} seed {seed}: not begun" for seed in SEEDS for form in forms]


def test_each_run_takes_the_device_with_the_fewest() -> None:
    places = ["cuda:0", "cuda:1", "cuda:2"]
    assert idlest(places, []) == "cuda:0"
    assert idlest(places, ["cuda:0", "cuda:2"]) == "cuda:1"
    assert idlest(places, ["cuda:0", "cuda:0", "cuda:1", "cuda:1", "cuda:2"]) == "cuda:2"


def test_whole_runs_of_earlier_results_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "ProcessPoolExecutor", lambda workers, _: ThreadPoolExecutor(workers))
    ((name, experiment),) = SMOKE.items()
    run = {"workload": name, "seed": 0} | asdict(replace(experiment, epochs=2))
    run["input"] = list(experiment.input)  # as JSON reads it
    whole, cut = run | {"block_size": 16, "test_accuracy": [0.1, 0.2]}, run | {"block_size": 32, "test_accuracy": [0.1]}
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps({"provenance": {"commit": "c0ffee0"}, "rows": [whole, cut]}))
    assert resumed(None, SMOKE) == []
    assert resumed(path, SMOKE) == []  # of one epoch
    assert resumed(path, {name: replace(experiment, epochs=2)}) == [whole | {"of_commit": "c0ffee0"}]
    earlier = {key: value for key, value in whole.items() if key != "cutout"}  # from before there was one
    path.write_text(json.dumps({"provenance": {"commit": "c0ffee0"}, "rows": [earlier]}))
    assert len(resumed(path, {name: replace(experiment, epochs=2)})) == 1
    assert resumed(path, {name: replace(experiment, epochs=2, cutout=8)}) == []
    monkeypatch.setattr(processes, "SEEDS", (0,))
    _, failed = all_learnt(SMOKE, tmp_path, "cpu", seconds=0, workers=1, done={(name, 0, 16)})
    assert failed == [f"{name} {form} seed 0: not begun" for form in ("dense", "k=32", "k=64")]

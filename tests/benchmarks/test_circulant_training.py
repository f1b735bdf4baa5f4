"""What learning costs is told of the runs that ended, and a run cut short is told too."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import circulant_training as training
from benchmarks.results import Row
from lamina.accelerate.methods.circulant import nn
from lamina.accelerate.methods.circulant.projection import Projection, diagonal_sums
from lamina.build.data import synthetic
from lamina.pipeline.reproduce.measured import accuracy as accuracies


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
    found = training.accuracies(training.runs(ROWS))
    assert [[*form.values()] for form in found.values()] == [
        [85.0, 5.0, 0.0, 1000, 1.0, 2, 2, 1.5],
        [84.0, 0.0, -1.0, 100, 10.0, 1, 2, 1.5],
    ]
    assert [*found] == ["net, dense", "net, k=10"]
    alone = training.accuracies(training.runs([row(10, 0, 1, 0.4), row(10, 0, 2, 0.84)]))
    assert alone["net, k=10"]["points of dense"] is None


def test_a_run_is_its_epochs_in_turn() -> None:
    runs = training.runs(ROWS[::-1])
    assert all(Row.model_validate(run | {"batch": 8}) for run in runs)
    found = {(one["block_size"], one["seed"]): one["test_accuracy"] for one in runs}
    times = {(one["block_size"], one["seed"]): (one["median_us"], one["n"]) for one in runs}
    assert all(one["parameters"] == 1000 // one["block_size"] for one in runs)
    assert found == {(1, 0): [0.5, 0.9], (1, 1): [0.7, 0.8], (10, 0): [0.4, 0.84], (10, 1): [0.1]}
    assert times == {(1, 0): (1.5e6, 2), (1, 1): (1.5e6, 2), (10, 0): (1.5e6, 2), (10, 1): (1e6, 1)}


def test_a_result_tells_its_command() -> None:
    asked = training.arguments(["accuracy", "--data", "d", "--networks", "vgg11 cifar10", "--workers", "3"])
    assert training.command(asked) == (
        "circulant_training accuracy --data FOLDER --seconds 240 --networks 'vgg11 cifar10' --claim circulant_accuracy"
    )
    assert training.command(training.arguments(["timing"])) == "circulant_training timing"


def test_gains_compare_with_the_better_dense_layout() -> None:
    common = {"workload": "net", "precision": "bf16", "timing": "graph", "peak_bytes": 2**20}
    rows = [common | {"impl": "dense", "median_us": us} for us in (9.0, 6.0)]
    rows += [common | {"impl": "circulant[block_size=64]", "median_us": 4.0, "peak_bytes": 3 * 2**20}]
    assert training.gains(rows) == {"net bf16:": "1.50x, peak 1 -> 3 MiB"}
    assert training.gains(rows[:2]) == {}


def test_runs_that_time_does_not_suffice_for_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "ProcessPoolExecutor", lambda workers, _: ThreadPoolExecutor(workers))
    rows, failed = training.all_learnt(training.SMOKE, tmp_path, "cpu", seconds=0, workers=1)
    assert rows == []
    forms = ["dense", *(f"k={size}" for size in training.BLOCK_SIZES[1:])]
    assert failed == [
        f"lenet5 fashion-mnist {form} seed {seed}: not begun" for seed in training.SEEDS for form in forms
    ]


def test_each_run_takes_the_device_with_the_fewest() -> None:
    places = ["cuda:0", "cuda:1", "cuda:2"]
    assert training.idlest(places, []) == "cuda:0"
    assert training.idlest(places, ["cuda:0", "cuda:2"]) == "cuda:1"
    assert training.idlest(places, ["cuda:0", "cuda:0", "cuda:1", "cuda:1", "cuda:2"]) == "cuda:2"


def test_whole_runs_of_earlier_results_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "ProcessPoolExecutor", lambda workers, _: ThreadPoolExecutor(workers))
    ((name, experiment),) = training.SMOKE.items()
    run = {"workload": name, "seed": 0} | asdict(replace(experiment, epochs=2))
    run["input"] = list(experiment.input)  # as JSON reads it
    whole, cut = run | {"block_size": 16, "test_accuracy": [0.1, 0.2]}, run | {"block_size": 32, "test_accuracy": [0.1]}
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps({"provenance": {"commit": "c0ffee0"}, "rows": [whole, cut]}))
    assert training.resumed(None, training.SMOKE) == []
    assert training.resumed(path, training.SMOKE) == []  # of one epoch
    assert training.resumed(path, {name: replace(experiment, epochs=2)}) == [whole | {"of_commit": "c0ffee0"}]
    earlier = {key: value for key, value in whole.items() if key != "cutout"}  # from before there was one
    path.write_text(json.dumps({"provenance": {"commit": "c0ffee0"}, "rows": [earlier]}))
    assert len(training.resumed(path, {name: replace(experiment, epochs=2)})) == 1
    assert training.resumed(path, {name: replace(experiment, epochs=2, cutout=8)}) == []
    monkeypatch.setattr(training, "SEEDS", (0,))
    _, failed = training.all_learnt(training.SMOKE, tmp_path, "cpu", seconds=0, workers=1, done={(name, 0, 16)})
    assert failed == [f"{name} {form} seed 0: not begun" for form in ("dense", "k=32", "k=64")]


def zero_blocks(dense: torch.Tensor, block_size: int, *, groups: int = 1, rescale: bool = False) -> Projection:
    """Blocks of the right shape: those nearest to the weights of all networks take half a minute."""
    return Projection(torch.zeros(diagonal_sums(dense.to("meta"), block_size, groups).shape), 1.0)


def test_each_network_takes_the_blocks_and_gives_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn, "project", zero_blocks)
    for name, shape in {(experiment.network, experiment.input) for experiment in training.EXPERIMENTS.values()}:
        network, record = training.built(name, 10, 64, "dense")
        assert record is not None
        assert record.replaced, name
        with torch.no_grad():
            assert network.eval()(torch.zeros(1, *shape)).shape == (1, 10), name


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    arrays = {f"x_{split}": rng.integers(0, 256, (32, 28, 28), dtype=np.uint8) for split in ("train", "test")}
    arrays |= {f"y_{split}": np.arange(32) % 10 for split in ("train", "test")}
    np.savez(tmp_path / "tiny.npz", **arrays)
    return str(tmp_path / "tiny.npz")


def test_a_run_prints_a_row_for_each_epoch(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = next(iter(training.SMOKE))
    for block_size in ("1", "16"):
        training.main(["run", "--device", "cpu", "--data", tiny, "--one", name, "3", block_size])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["block_size"], one["seed"], one["epoch"]) for one in rows] == [(1, 3, 1), (16, 3, 1)]
    assert rows[1]["parameters"] < rows[0]["parameters"]
    assert all(one["seconds"] > 0 for one in rows)
    assert rows[1]["converted"] == ["classifier.0", "classifier.2"]
    assert [one["block_learning_rate"] / one["learning_rate"] for one in rows] == [1, 2]


@pytest.mark.parametrize(("held_out", "samples"), [(False, 32), (True, 27)])
def test_blocks_learn_by_the_exponent_and_a_part_may_be_held_out(tiny: str, held_out: bool, samples: int) -> None:
    (experiment,) = training.SMOKE.values()
    experiment = replace(experiment, exponent=0.5)
    (row,) = training.learnt("net", experiment, 16, 0, tiny, torch.device("cpu"), held_out)
    assert (row["block_learning_rate"] / row["learning_rate"], row["samples"]) == (pytest.approx(4), samples)


def test_a_sixth_of_the_training_samples_is_held_out() -> None:
    data = synthetic((1, 4, 4), 3, 60)
    train_set, test_set = training.held(data)
    parts = [[tuple(one.flatten().tolist()) for one in part.x] for part in (train_set, test_set)]
    assert (len(train_set), len(test_set)) == (50, 10) and not {*parts[0]} & {*parts[1]}
    assert {*parts[0], *parts[1]} == {tuple(one.flatten().tolist()) for one in data.x}
    assert train_set.mean == test_set.mean == data.mean


def test_dropout_shrinks_with_the_weights() -> None:
    rates = [
        [layer.p for layer in training.built("conv4fc3", 10, k, "reference")[0].modules() if hasattr(layer, "p")]
        for k in (1, 16)
    ]
    assert rates == [[0.5, 0.5], [0.125, 0.125]]


def test_the_first_convolution_and_the_classifier_stay_dense() -> None:
    record = training.built("tdnn", 64, 16, "reference")[1]
    assert record is not None
    assert [one.layer for one in record.skipped if one.refusal == "not selected"] == ["features.0", "classifier"]
    record = training.built("lstm", 64, 16, "reference")[1]
    assert record is not None
    assert [one.layer for one in record.replaced] == ["lstm"]


def test_batch_normalisation_follows_each_convolution() -> None:
    for block_size in (1, 16):
        network: Any = training.built("conv4fc3", 10, block_size, "reference", normed=True)[0]
        kinds = [type(each).__name__.replace("BlockCirculant", "") for each in network.features]
        assert kinds == ["Conv2d", "BatchNorm2d", "ReLU", "Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"] * 2
        assert [each.num_features for each in network.features if hasattr(each, "num_features")] == [64, 64, 128, 128]


def test_narrow_convolutions_stay_dense() -> None:
    record = training.built("conv4fc3", 10, 16, "reference", narrow=training.NARROW)[1]
    assert record is not None
    assert [one.layer for one in record.replaced] == ["features.7", "classifier.0", "classifier.3"]


def learning(block_size: int, half: float, accuracy: float, name: str = accuracies.PAPERS) -> dict[str, Any]:
    """A run of four epochs, of whose loss ``half`` is left after two."""
    return {
        "workload": name, "block_size": block_size, "epochs": 4, "parameters": 100 // block_size, "median_us": 1.0,
        "train_loss": [1.0, 0.9, half, 0.0], "test_accuracy": [0.1, 0.2, 0.3, accuracy],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("half", "accuracy", "held"),
    [(0.5, 0.905, (True, True, True)), (0.3, 0.88, (False, False, True)), (0.5, 0.85, (True, False, False))],
)
def test_what_the_dissertation_reads_off_courses_is_looked_for(
    half: float, accuracy: float, held: tuple[bool, ...]
) -> None:
    runs = [learning(1, 0.5, 0.91), learning(16, half, accuracy)]
    names = ("converges_like_dense", "accuracy_like_dense", "less_than_4_points_lost")
    assert tuple(accuracies.RULES[name](runs)[1] for name in names) == held
    assert accuracies.RULES["parameters_are_far_fewer"](runs) == ("1 of 1 networks and block sizes", True)
    other = [learning(1, 0.5, 0.9, "other"), learning(2, 0.5, 0.9, "other")]
    assert accuracies.RULES["parameters_are_far_fewer"](runs + other) == (
        "1 of 2 networks and block sizes",
        False,
    )

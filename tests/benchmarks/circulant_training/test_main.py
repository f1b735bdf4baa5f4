"""The command: what it prints of a run, and what a result tells of it."""

import json

import pytest

from benchmarks.circulant_training.__main__ import arguments, command, main
from benchmarks.circulant_training.experiments import SMOKE


def test_a_result_tells_its_command() -> None:
    asked = arguments(["accuracy", "--data", "d", "--networks", "vgg11 cifar10", "--workers", "3"])
    assert command(asked) == (
        "circulant_training accuracy --data FOLDER --seconds 240 --networks 'vgg11 cifar10' --claim circulant_accuracy"
    )
    assert command(arguments(["timing"])) == "circulant_training timing"


def test_a_run_prints_a_row_for_each_epoch(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = next(iter(SMOKE))
    for block_size in ("1", "16"):
        main(["run", "--device", "cpu", "--data", tiny, "--one", name, "3", block_size])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["block_size"], one["seed"], one["epoch"]) for one in rows] == [(1, 3, 1), (16, 3, 1)]
    assert rows[1]["parameters"] < rows[0]["parameters"]
    assert all(one["seconds"] > 0 for one in rows)
    assert rows[1]["converted"] == ["classifier.0", "classifier.2"]
    assert [one["block_learning_rate"] / one["learning_rate"] for one in rows] == [1, 2]

"""Accuracies by network and block size, of runs of several lengths, and statements on them."""

from typing import Any

import pytest

from lamina.pipeline.reproduce.measured.accuracy import PAPERS, RULES, accuracies, lost


def run(block_size: int, epochs: int, *accuracies: float, workload: str = "vgg") -> dict[str, object]:
    return {
        "workload": workload, "block_size": block_size, "epochs": epochs, "parameters": 64 // block_size,
        "test_accuracy": list(accuracies), "median_us": 1e6,
    }  # fmt: skip


def test_means_are_over_the_whole_runs_of_most_epochs() -> None:
    short = [run(1, 1, 0.7), run(16, 1, 0.5)]
    runs = [*short, run(1, 2, 0.7, 0.9), run(1, 2, 0.6, 0.8), run(16, 2, 0.6, 0.8), run(16, 2, 0.3)]
    known = accuracies([*runs, run(1, 1, 0.4, workload="lenet")])
    assert {form: (one["test accuracy, %"], one["seeds"]) for form, one in known.items()} == {
        "lenet, dense": (40.0, 1), "vgg, dense": (85.0, 2), "vgg, k=16": (80.0, 1),
    }  # fmt: skip
    assert known["vgg, k=16"]["times fewer"] == 16
    assert lost(runs) == {"vgg, k=16": 5.0} and lost(short) == {"vgg, k=16": 20.0}


def learning(block_size: int, half: float, accuracy: float, name: str = PAPERS) -> dict[str, Any]:
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
    assert tuple(RULES[name](runs)[1] for name in names) == held
    assert RULES["parameters_are_far_fewer"](runs) == ("1 of 1 networks and block sizes", True)
    other = [learning(1, 0.5, 0.9, "other"), learning(2, 0.5, 0.9, "other")]
    assert RULES["parameters_are_far_fewer"](runs + other) == ("1 of 2 networks and block sizes", False)

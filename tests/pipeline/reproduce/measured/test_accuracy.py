"""Accuracies by network and block size, of runs of several lengths."""

from lamina.pipeline.reproduce.measured.accuracy import accuracies, lost


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

"""Accuracies of dense and block-circulant networks: figures 7.12 and 7.13."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from lamina.pipeline.reproduce.live import live
from lamina.pipeline.reproduce.measured.judging import Judged, Measurement, Rule, share

PAPERS = "conv4fc3 cifar10"
"""The network and data set of figure 7.12."""


def form_of(block_size: int) -> str:
    """The name of a block size; 1 is dense."""
    return "dense" if block_size == 1 else f"k={block_size}"


def accuracies(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Accuracy and size of each network and block size: means over the seeds whose runs finished.

    Of a network that was trained for several numbers of epochs, the most.
    """
    forms: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    most: dict[str, int] = {}
    for one in runs:
        most[one["workload"]] = max(one["epochs"], most.get(one["workload"], 0))
    for one in runs:
        if len(one["test_accuracy"]) == one["epochs"] == most[one["workload"]]:
            forms.setdefault((one["workload"], one["block_size"]), []).append(one)
    found = {}
    for (name, block_size), mine in sorted(forms.items()):
        dense = forms.get((name, 1), [])
        ours, theirs = ([100 * one["test_accuracy"][-1] for one in some] for some in (mine, dense))
        found[f"{name}, {form_of(block_size)}"] = {
            "test accuracy, %": round(fmean(ours), 2), "deviation": round(pstdev(ours), 2),
            "points of dense": round(fmean(ours) - fmean(theirs), 2) if dense else None,
            "parameters": mine[0]["parameters"],
            "times fewer": round(dense[0]["parameters"] / mine[0]["parameters"], 1) if dense else None,
            "seeds": len(mine), "epochs": mine[0]["epochs"],
            "s of an epoch": round(fmean(one["median_us"] for one in mine) / 1e6, 2),
        }  # fmt: skip
    return found


def converges_like_dense(runs: Sequence[Mapping[str, Any]]) -> Judged:
    """After half of the epochs the loss has fallen by the same fraction as that of dense ones, within 0.1."""
    halfway: dict[int, list[float]] = {}
    for one in runs:
        if one["workload"] == PAPERS and len(one["train_loss"]) == one["epochs"]:
            first, *_, last = one["train_loss"]
            fell = (first - one["train_loss"][one["epochs"] // 2]) / (first - last)
            halfway.setdefault(one["block_size"], []).append(fell)
    dense = fmean(halfway.pop(1))
    return share("block sizes", (abs(fmean(fractions) - dense) < 0.1 for fractions in halfway.values()))


def lost(runs: Sequence[Mapping[str, Any]], name: str = "") -> dict[str, float]:
    """Points of accuracy that circulant networks lose, by network and block size."""
    known = accuracies(runs)
    return {
        form: -one["points of dense"]
        for form, one in known.items()
        if form.startswith(name) and not form.endswith("dense") and one["points of dense"] is not None
    }


def fewer(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Parameters of dense over those of circulant networks, by network and block size."""
    known = accuracies(runs)
    return {
        form: one["times fewer"] for form, one in known.items() if not form.endswith("dense") and one["times fewer"]
    }


CASES = "networks and block sizes"
RULES: Mapping[str, Rule] = {
    "converges_like_dense": converges_like_dense,
    "accuracy_like_dense": lambda runs: share("block sizes", (one < 1 for one in lost(runs, f"{PAPERS},").values())),
    "parameters_are_far_fewer": lambda runs: share(CASES, (one > 4 for one in fewer(runs).values())),
    "less_than_4_points_lost": lambda runs: share(CASES, (one < 4 for one in lost(runs).values())),
}
"""The statements, by their names in entries: a similar accuracy is within 1 point, far fewer at most a quarter."""

MEASUREMENT = Measurement(
    ("circulant_accuracy", "circulant_accuracy_vgg11", "circulant_accuracy_vgg16"),
    statements=RULES,
    run=live("training", "accuracy"),
    command="python -m benchmarks.circulant_training accuracy",
)

"""Rungs of a layer stand together, behind what was predicted."""

from types import SimpleNamespace

import torch

from benchmarks.ladder.rungs import beside_predictions, changed
from lamina.accelerate.runtime.launch_cache import cached_launches


def test_changes_of_a_rung_reach_cached_launches() -> None:
    module = SimpleNamespace(by=2)
    scaled, x = cached_launches(lambda x: x * module.by), torch.ones(3)

    def several() -> list[float]:
        return [float(scaled(x)[0]) for _ in range(4)]

    assert several() == [2.0] * 4
    with changed(((module, {"by": 5}),)):
        assert several() == [5.0] * 4
    assert several() == [2.0] * 4


def test_rungs_are_told_by_what_columns_say() -> None:
    rows = [
        {"layer": layer, "precision": "fp32", "impl": impl, "predicted_us": 1.25, "median_us": us}
        for layer, impl, us in (("a", "first", 9.04), ("a", "second", 3.0), ("b", "first", 5.0))
    ]
    assert beside_predictions(rows, "layer", "precision") == {
        "a fp32, us": {"predicted": 1.2, "first": 9.0, "second": 3.0},
        "b fp32, us": {"predicted": 1.2, "first": 5.0},
    }
    assert list(beside_predictions(rows, "layer")) == ["a, us", "b, us"]

"""Weights of layers with pruned inputs: what is fitted together, and to which samples."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from lamina.pipeline.deft.calibration import material
from lamina.pipeline.study.fitted import MOMENTS, fitted, together

CPU = torch.device("cpu")
HALF = "eliminated[recovery=least_squares,keep=0.5]"


def test_second_moments_fit_into_memory() -> None:
    inputs = {"a": 100, "b": 8000, "c": 9000, "d": 25088, "e": 10}
    groups = together(inputs)
    assert groups == [["a", "b"], ["c"], ["d"], ["e"]]
    assert all(len(names) == 1 or sum(inputs[name] ** 2 for name in names) <= MOMENTS for names in groups)
    assert together({}) == []


def test_layers_are_fitted_to_training_samples() -> None:
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.ReLU(), nn.Linear(8, 10)).eval()
    parts = material("fashion-mnist", (1, 28, 28), 100, 0)
    blank = replace(parts, calibration=replace(parts.calibration, x=parts.calibration.x * 0))
    options = {"1": [HALF, "circulant[block_size=4]"], "3": ["circulant[block_size=2]"]}
    said: list[object] = []
    found, same = (fitted(dense, options, each, CPU, said.append) for each in (parts, blank))
    assert [*found] == ["1"] and [*found["1"]] == [0.5]
    layer, other = found["1"][0.5], same["1"][0.5]
    assert all(torch.equal(a, b) for a, b in zip(layer.parameters(), other.parameters(), strict=True))
    x = torch.cat([x for x, _ in parts.ordered(parts.learn)])[:1000].flatten(1)
    expected, first = dense[1](x), dense[1](x * 0)
    error = (layer(x) - expected).norm() / (expected - first).norm()
    assert error < 0.3


@pytest.mark.parametrize("options", [{}, {"1": ["fused", "circulant[block_size=4]"]}])
def test_without_pruned_inputs_nothing_is_made(options: dict[str, list[str]]) -> None:
    parts = material("fashion-mnist", (1, 28, 28), 100, 0)
    assert fitted(nn.Sequential(nn.Flatten(), nn.Linear(784, 8)), options, parts, CPU, print) == {}

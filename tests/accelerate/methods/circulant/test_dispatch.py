"""The selection of version 0.1 still works, with a warning, through the selection of today."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from lamina.accelerate.methods.circulant.dispatch import Dispatcher, calibrate, calibrate_model
from lamina.accelerate.methods.circulant.nn import BlockCirculantLinear


def prefers(impl: str, layer: BlockCirculantLinear) -> Callable[[Callable[[], object]], float]:
    """A timer whose second callable, the dense matrix, takes half as long."""
    times = iter([2.0, 1.0] * 8)

    def timer(step: Callable[[], object]) -> float:
        step()
        return next(times)

    return timer


@pytest.fixture
def dispatcher(tmp_path: Path) -> Dispatcher:
    with pytest.warns(DeprecationWarning, match="select='measure'"):
        return Dispatcher(tmp_path, prefers("dense", BlockCirculantLinear(8, 8, 4)), {"device": "cpu"})


def test_a_layer_gets_the_fastest_implementation(dispatcher: Dispatcher) -> None:
    layer = BlockCirculantLinear(8, 8, 4)
    found = calibrate(layer, torch.randn(2, 8), dispatcher)
    assert found.impl == "impl=dense" and layer.impl == "dense" and found.times_us["impl=dense"] == 1.0


def test_a_model_is_calibrated_layer_by_layer(dispatcher: Dispatcher) -> None:
    model = nn.Sequential(BlockCirculantLinear(8, 8, 4), nn.ReLU(), BlockCirculantLinear(8, 12, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = calibrate_model(model, torch.randn(2, 8), dispatcher)
    assert {*found} == {"0", "2"} and all(model[int(name)].impl == "dense" for name in found)

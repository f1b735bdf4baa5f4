"""A candidate that computes something else than the method is refused."""

from typing import Any

import pytest
import torch
from torch import nn

from lamina.accelerate.methods.circulant.candidates import agreeing
from lamina.accelerate.methods.circulant.nn import BlockCirculantLinear
from lamina.accelerate.select import LayerCall, observe
from lamina.errors import UnsupportedError


def called(layer: nn.Module) -> LayerCall:
    torch.manual_seed(0)
    with torch.enable_grad():
        return observe(nn.Sequential(layer), ["0"], torch.randn(5, 12))["0"]


class Wrong(BlockCirculantLinear):
    """Its outputs are those of the method; ``dense`` gives other gradients."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        y: Any = super().forward(input)
        return y if self.impl != "dense" else 2 * y - y.detach()


@pytest.mark.parametrize("training", [False, True])
def test_equal_results_are_taken(training: bool) -> None:
    layer = BlockCirculantLinear(12, 8, 4)
    found = agreeing(layer, called(layer), training, "dense", "reference")
    assert isinstance(found, BlockCirculantLinear) and found.impl == "dense" and found.weight is layer.weight


def test_other_gradients_are_refused() -> None:
    layer = Wrong(12, 8, 4)
    agreeing(layer, called(layer), False, "dense", "reference")
    with pytest.raises(UnsupportedError, match="impl=dense differs from impl=reference by 1.0e"):
        agreeing(layer, called(layer), True, "dense", "reference")


class WrongOutputs(BlockCirculantLinear):
    """Its gradients are those of the method; ``dense`` gives other outputs."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        y: Any = super().forward(input)
        return y if self.impl != "dense" else y + y.detach()


@pytest.mark.parametrize("training", [False, True])
def test_other_outputs_are_refused(training: bool) -> None:
    layer = WrongOutputs(12, 8, 4)
    with pytest.raises(UnsupportedError, match="impl=dense differs from impl=reference by 1.0e"):
        agreeing(layer, called(layer), training, "dense", "reference")


def test_results_that_are_no_numbers_are_refused() -> None:
    layer = BlockCirculantLinear(12, 8, 4)
    call = called(layer)
    with torch.no_grad():
        layer.weight.fill_(float("nan"))
    with pytest.raises(UnsupportedError, match="differs"):
        agreeing(layer, call, False, "dense", "reference")

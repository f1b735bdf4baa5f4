"""The layers that the method refuses, and the replacements of the others."""

import pytest
import torch
from torch import nn

from lamina.accelerate.methods.circulant import Circulant
from lamina.accelerate.methods.circulant.convert import refusal, replace
from lamina.accelerate.methods.circulant.nn import BlockCirculantConv2d, BlockCirculantLinear
from lamina.errors import UnsupportedError


class Linear(nn.Linear):
    """A subclass, whose forward pass is unknown."""


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.ReLU(), "ReLU has no weights"),
        (Linear(8, 8), "none of Linear"),
        (nn.ConvTranspose1d(8, 8, 2), "none of Linear"),
        (nn.Conv2d(8, 16, 3, groups=8), "depthwise"),
        (nn.LSTM(8, 8, proj_size=2), "proj_size=2 is not supported"),
    ],
)
def test_refusals(module: nn.Module, reason: str) -> None:
    assert reason in (refusal(module) or "")
    with pytest.raises(UnsupportedError, match=reason):
        replace(module, Circulant(block_size=4))


@pytest.mark.parametrize("module", [nn.Linear(8, 8), nn.Conv1d(8, 8, 3, groups=2), nn.Conv2d(8, 8, 3), nn.LSTM(8, 8)])
def test_supported_layers_are_not_refused(module: nn.Module) -> None:
    assert refusal(module) is None


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Linear(3, 8), "exceeds its 3 input features"),
        (nn.Conv2d(8, 4, 3, groups=2), "exceeds its 2 output channels per group"),
        (nn.LSTM(8, 2), "exceeds its 2 hidden units"),
    ],
)
def test_layers_smaller_than_a_block_are_refused(module: nn.Module, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        replace(module, Circulant(block_size=4))


def test_the_layer_has_the_options_of_the_configuration() -> None:
    dense = nn.Conv2d(8, 8, 3, stride=2, padding=1, dilation=2, bias=False)
    layer = replace(dense, Circulant(block_size=4, rescale=True, impl="dense"))
    assert isinstance(layer, BlockCirculantConv2d)
    assert (layer.block_size, layer.impl, layer.stride, layer.dilation) == (4, "dense", (2, 2), (2, 2))
    assert layer.bias is None
    assert layer.signs is None
    assert replace(dense, Circulant(block_size=4, signs=True)).signs is not None
    assert not [name for name, _ in replace(nn.LSTM(8, 8), Circulant(block_size=4, signs=True)).named_buffers()]
    norm = float(layer.to_dense().weight.detach().norm())
    assert norm == pytest.approx(float(dense.weight.detach().norm()), rel=1e-5)


def test_fresh_weights_are_initialized() -> None:
    dense = nn.Linear(8, 8)
    layer = replace(dense, Circulant(block_size=4, init="fresh"))
    assert isinstance(layer, BlockCirculantLinear)
    assert not torch.equal(layer.weight, BlockCirculantLinear.from_dense(dense, 4).weight)

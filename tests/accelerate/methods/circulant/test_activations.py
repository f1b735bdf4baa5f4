"""Activations by their codes, against PyTorch's modules."""

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from lamina.accelerate.common.activations import MODULES
from lamina.accelerate.methods.circulant import activations
from lamina.accelerate.methods.circulant.activations import ACTIVATIONS, InputActivation, code, named
from lamina.accelerate.methods.circulant.nn import BlockCirculantConv2d, BlockCirculantLinear
from lamina.errors import UsageError


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_and_its_gradient_are_those_of_its_module(activation: InputActivation) -> None:
    module = MODULES[activation]()
    assert activations.input_activation_of(module) == activation
    x, dy = torch.randn(2, 5, 7, dtype=torch.float64)
    x[0, 0] = 0
    x.requires_grad_()
    y = activations.activated(x, activation)
    torch.testing.assert_close(y, module(x), rtol=0, atol=0)
    (dx,) = torch.autograd.grad(y, x, dy)
    torch.testing.assert_close(activations.gradient_through(dy, x.detach(), activation), dx, rtol=0, atol=0)
    inputs = dy.requires_grad_(), torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda dy, x: activations.gradient_through(dy, x, activation), inputs, fast_mode=True)


def test_code_0_is_none() -> None:
    x = torch.randn(3)
    assert code(None) == 0 and named(0) is None and activations.activated(x, None) is x
    assert [code(each) for each in ACTIVATIONS] == [1, 2, 3]  # as `activations.cu` has them
    assert [named(code(each)) for each in ACTIVATIONS] == [*ACTIVATIONS]


def test_other_modules_are_none() -> None:
    class Shifted(nn.GELU):
        """GELU of something else."""

    others = nn.SiLU(), nn.Tanh(), nn.Linear(2, 2), Shifted(), nn.ReLU6()
    assert all(activations.input_activation_of(one) is None for one in others)


def test_unknown_activations_are_refused() -> None:
    with pytest.raises(UsageError, match="input_activation: expected one of relu, gelu, gelu_tanh, or None"):
        BlockCirculantLinear(8, 8, 4, input_activation="silu")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="activation: expected 'relu' or None, got 'gelu'"):
        BlockCirculantConv2d(8, 8, 1, block_size=4, activation="gelu")  # type: ignore[arg-type]

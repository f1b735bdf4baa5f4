"""A layer in two operators has gradients of the first and second order, of its spectra too."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.flop_counter import FlopCounterMode

from lamina.accelerate.methods.circulant import layer_ops
from lamina.accelerate.methods.circulant.window import Window

pytestmark = pytest.mark.usefixtures("where_kernels_run")

FP64 = torch.float64
WINDOW = Window(1, 1, 3, 1, 2)
X, WEIGHT = (1, 4, 1, 3), (2, 1, 2, 2, 3)


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=FP64, requires_grad=True)


def product(x: Tensor, w: Tensor, signs: Tensor | None = None, bias: Tensor | None = None) -> tuple[Tensor, ...]:
    """The output, and spectra of both, in blocks of 3."""
    results: tuple[Tensor, ...] = layer_ops.product(x, w, signs, bias, 4, WINDOW.pack(), FP64, False)
    return results[:3]


def test_gradients_of_outputs(poisoned_empty: None) -> None:
    signs = torch.tensor([1.0, -1.0, -1.0])
    operands = leaf(*X), leaf(*WEIGHT), leaf(4)
    # One random direction instead of every coordinate: the interpreter takes milliseconds for each call.
    for check in gradcheck, gradgradcheck:
        assert check(lambda x, w, bias: product(x, w, signs, bias)[0], operands, fast_mode=True)


def test_gradients_of_spectra(poisoned_empty: None) -> None:
    for check in gradcheck, gradgradcheck:
        assert check(product, (leaf(*X), leaf(*WEIGHT)), fast_mode=True)


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_operand_costs_no_gradient(frozen: int) -> None:
    operands = leaf(*X), leaf(*WEIGHT)
    operands[frozen].requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        y, *_ = product(*operands)
        forward = counter.get_total_flops()
        y.sum().backward()
    blocks = 3 * 2, 2 * 2 * 2, 2 * 2  # of rows, of weights, of outputs
    transforms, product_ = [2 * 4 * 3 * one for one in blocks], 8 * 2 * 2 * 2 * 2 * 2
    assert forward == sum(transforms) + product_
    assert counter.get_total_flops() == 2 * forward - transforms[frozen]


def test_gradients_in_several_directions_at_once() -> None:
    operands = leaf(*X), leaf(*WEIGHT)
    y, *_ = layer_ops.directly(*operands, None, None, 4, tuple(WINDOW.pack()), FP64, False)
    directions = torch.randn(2, *y.shape, dtype=FP64)
    together = torch.autograd.grad(y, operands, directions, retain_graph=True, is_grads_batched=True)
    for direction, *ours in zip(directions, *together, strict=True):
        alone = torch.autograd.grad(y, operands, direction, retain_graph=True)
        for one, other in zip(ours, alone, strict=True):
            torch.testing.assert_close(one, other)

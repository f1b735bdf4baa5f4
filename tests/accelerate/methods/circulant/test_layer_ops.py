"""The layer operators are differentiable to second order, with respect to their saved spectra too."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.flop_counter import FlopCounterMode

from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.methods.circulant import layer_ops

pytestmark = pytest.mark.usefixtures("where_kernels_run")

FP64 = torch.float64
WINDOW = Conv2dProblem(1, 1, 3, 1, 2)
X, WEIGHT = (1, 4, 1, 3), (2, 1, 2, 2, 3)


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=FP64, requires_grad=True)


def layer_and_spectra(
    x: Tensor, w: Tensor, signs: Tensor | None = None, bias: Tensor | None = None, relu: bool = False
) -> tuple[Tensor, ...]:
    """The output and the spectra of input and weight, in blocks of 3."""
    results: tuple[Tensor, ...] = layer_ops.layer(x, w, signs, bias, 4, WINDOW.pack(), FP64, False, relu)
    return results[:3]


def test_gradients_of_outputs(poisoned_empty: None) -> None:
    signs = torch.tensor([1.0, -1.0, -1.0])
    operands = leaf(*X), leaf(*WEIGHT), leaf(4)
    # One random direction instead of every coordinate: the interpreter takes milliseconds for each call.
    for check in gradcheck, gradgradcheck:
        for relu in (False, True):
            assert check(
                lambda x, w, b, relu=relu: layer_and_spectra(x, w, signs, b, relu)[0], operands, fast_mode=True
            )


def test_gradients_of_spectra(poisoned_empty: None) -> None:
    for check in gradcheck, gradgradcheck:
        assert check(layer_and_spectra, (leaf(*X), leaf(*WEIGHT)), fast_mode=True)


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_operand_costs_no_gradient(frozen: int) -> None:
    operands = leaf(*X), leaf(*WEIGHT)
    operands[frozen].requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        y, *_ = layer_and_spectra(*operands)
        forward = counter.get_total_flops()
        y.sum().backward()
    blocks = 3 * 2, 2 * 2 * 2, 2 * 2  # of rows, of weights, of outputs
    transforms, matmul = [2 * 4 * 3 * one for one in blocks], 8 * 2 * 2 * 2 * 2 * 2
    assert forward == sum(transforms) + matmul
    assert counter.get_total_flops() == 2 * forward - transforms[frozen]


@pytest.mark.parametrize(("dtype", "scales"), [(torch.bfloat16, 0), (torch.float32, 2)])
def test_only_scaled_spectra_have_scales_to_save(dtype: torch.dtype, scales: int) -> None:
    x, weight = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in (X, WEIGHT))
    saved = list[Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda one: saved.append(one) or one, lambda one: one):
        y, *_ = layer_ops.layer(x, weight, None, None, 4, WINDOW.pack(), dtype, bool(scales), False)
    assert [one.numel() for one in saved].count(1) == scales and all(one.numel() for one in saved)
    y.sum().backward()
    assert x.grad is not None and weight.grad is not None


def test_batched_gradients() -> None:
    operands = leaf(*X), leaf(*WEIGHT)
    y, *_ = layer_ops.layer_eager(*operands, None, None, 4, tuple(WINDOW.pack()), FP64, False, True)
    directions = torch.randn(2, *y.shape, dtype=FP64)
    batched = torch.autograd.grad(y, operands, directions, retain_graph=True, is_grads_batched=True)
    for direction, *ours in zip(directions, *batched, strict=True):
        alone = torch.autograd.grad(y, operands, direction, retain_graph=True)
        for one, other in zip(ours, alone, strict=True):
            torch.testing.assert_close(one, other)

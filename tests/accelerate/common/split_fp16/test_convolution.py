"""Split-fp16 convolutions against float64."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.common.split_fp16 import ops

pytestmark = pytest.mark.usefixtures("where_kernels_run")

SHAPES = [
    # images, inputs, outputs, (height, width), kernel, stride, padding, dilation, groups
    (2, 6, 10, (7, 5), (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (2, 6, 10, (7, 5), (3, 2), (2, 1), (1, 0), (1, 2), 2),
    (1, 1, 1, (1, 1), (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (1, 20, 40, (9, 9), (5, 5), (1, 3), (2, 2), (1, 1), 1),
    (0, 2, 2, (3, 3), (3, 3), (1, 1), (1, 1), (1, 1), 1),
]
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {"NCHW": lambda x: x, "NHWC": lambda x: x.mT.contiguous().mT}


def split_rows(x: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """Split rows of ``(N, C, L)`` and their partial amaxes."""
    amax = ops.partial_amax(x.contiguous())
    return ops.split(x, amax, terms), amax


def split_weights(w: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    rows = w.flatten(2).mT.reshape(-1, w.shape[1], 1)
    split, amax = split_rows(rows, terms)
    return split.view(terms, w.shape[0], -1, w.shape[1]), amax


def error(ours: Tensor, exact: Tensor) -> float:
    return float((ours.double() - exact).norm() / exact.norm().clamp(min=1e-300))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("terms", "bound"), [(1, 2**-9), (2, 2**-21)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_phase_equals_the_float32_convolution(
    shape: tuple[object, ...], terms: int, bound: float, layout: str
) -> None:
    n, inputs, outputs, sizes, kernel, stride, padding, dilation, groups = shape
    x, b = torch.randn(n, inputs, *sizes) * 1e-5, torch.randn(outputs)
    w = torch.randn(outputs, inputs // groups, *kernel) * 1e3
    steps = stride, padding, dilation, groups
    leaves = [t.double().requires_grad_() for t in (x, w, b)]
    exact = F.conv2d(*leaves, *steps)
    dy = torch.randn(exact.shape)
    dx, dw, _ = torch.autograd.grad(exact, leaves, dy.double())
    window = Conv2dProblem(n, *sizes, *kernel, *stride, *padding, *dilation, groups)
    layout_of = LAYOUTS[layout]
    xs, dys, ws = (
        split_rows(layout_of(x.flatten(2)), terms),
        split_rows(layout_of(dy.flatten(2)), terms),
        split_weights(w, terms),
    )
    y, data_gradient = (layout_of(torch.full_like(t.flatten(2), math.nan)) for t in (dy, x))
    ops.split_fp16_conv(*xs, *ws, b, y, window, backward_data=False)
    ops.split_fp16_conv(*dys, *ws, None, data_gradient, window, backward_data=True)
    gradient = ops.split_fp16_conv_backward_weight(*dys, *xs, window)
    assert error(y.view_as(exact), exact.detach()) < bound
    assert error(data_gradient.reshape(x.shape), dx) < bound
    assert error(gradient.mT.reshape(w.shape), dw) < bound


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("terms", [1, 2])
def test_nonfinite_inputs_reach_the_outputs_that_read_them(terms: int, value: float) -> None:
    x, w = torch.randn(1, 4, 5, 5), torch.randn(3, 4, 3, 3)
    x[0, 1, 0, 0] = value
    y = torch.empty(1, 3, 25)
    window = Conv2dProblem(1, 5, 5, 3, 3, 1, 1, 1, 1)
    ops.split_fp16_conv(*split_rows(x.flatten(2), terms), *split_weights(w, terms), None, y, window, False)
    assert torch.equal(y.isfinite(), F.conv2d(x, w, padding=1).flatten(2).isfinite())


def test_the_split_k_reduction_is_deterministic() -> None:
    x, dy = torch.randn(40, 3, 64), torch.randn(40, 5, 64)
    window = Conv2dProblem(40, 8, 8)
    operands = *split_rows(dy, 2), *split_rows(x, 2), window
    assert torch.equal(ops.split_fp16_conv_backward_weight(*operands), ops.split_fp16_conv_backward_weight(*operands))

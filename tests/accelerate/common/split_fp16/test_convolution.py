import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.common.split_fp16 import ops
from lamina.accelerate.methods.circulant.window import Window

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


def laid_down(x: Tensor, parts: int) -> tuple[Tensor, Tensor]:
    """Halves of rows ``(N, C, L)``."""
    largest = ops.partial_amax(x.contiguous())
    return ops.split(x, largest, parts), largest


def weights(w: Tensor, parts: int) -> tuple[Tensor, Tensor]:
    rows = w.flatten(2).mT.reshape(-1, w.shape[1], 1)
    halves, largest = laid_down(rows, parts)
    return halves.view(parts, w.shape[0], -1, w.shape[1]), largest


def error(ours: Tensor, exact: Tensor) -> float:
    return float((ours.double() - exact).norm() / exact.norm().clamp(min=1e-300))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("parts", "bound"), [(1, 2**-9), (2, 2**-21)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_phase_is_that_of_the_float32_convolution(
    shape: tuple[object, ...], parts: int, bound: float, layout: str
) -> None:
    n, inputs, outputs, sizes, kernel, stride, padding, dilation, groups = shape
    x, b = torch.randn(n, inputs, *sizes) * 1e-5, torch.randn(outputs)
    w = torch.randn(outputs, inputs // groups, *kernel) * 1e3
    steps = stride, padding, dilation, groups
    wide = [t.double().requires_grad_() for t in (x, w, b)]
    exact = F.conv2d(*wide, *steps)
    dy = torch.randn(exact.shape)
    dx, dw, _ = torch.autograd.grad(exact, wide, dy.double())
    window = Window(n, *sizes, *kernel, *stride, *padding, *dilation, groups)
    lay = LAYOUTS[layout]
    xs, dys, ws = laid_down(lay(x.flatten(2)), parts), laid_down(lay(dy.flatten(2)), parts), weights(w, parts)
    y, back = (lay(torch.full_like(t.flatten(2), math.nan)) for t in (dy, x))
    ops.product(*xs, *ws, b, y, window, back=False)
    ops.product(*dys, *ws, None, back, window, back=True)
    gradient = ops.gradient(*dys, *xs, window)
    assert error(y.view_as(exact), exact.detach()) < bound
    assert error(back.reshape(x.shape), dx) < bound
    assert error(gradient.mT.reshape(w.shape), dw) < bound


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("parts", [1, 2])
def test_what_is_not_finite_reaches_the_outputs_that_it_should(parts: int, value: float) -> None:
    x, w = torch.randn(1, 4, 5, 5), torch.randn(3, 4, 3, 3)
    x[0, 1, 0, 0] = value
    y = torch.empty(1, 3, 25)
    ops.product(*laid_down(x.flatten(2), parts), *weights(w, parts), None, y, Window(1, 5, 5, 3, 3, 1, 1, 1, 1), False)
    assert torch.equal(y.isfinite(), F.conv2d(x, w, padding=1).flatten(2).isfinite())


def test_shares_are_summed_in_an_order_of_their_own() -> None:
    x, dy = torch.randn(40, 3, 64), torch.randn(40, 5, 64)
    window = Window(40, 8, 8)
    operands = *laid_down(dy, 2), *laid_down(x, 2), window
    assert torch.equal(ops.gradient(*operands), ops.gradient(*operands))

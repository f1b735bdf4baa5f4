"""Compiled kernels on the shapes they are for, in every precision, against float64."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from lamina.accelerate import convert
from lamina.accelerate.common.geometry import Pool2dGeometry
from lamina.accelerate.methods.fusion import Fusion, functional, reference
from lamina.accelerate.methods.fusion.config import ACTIVATIONS, Activation, Impl
from lamina.build.models import create
from lamina.run import precision_mode
from lamina.testing import assert_as_accurate

from ...precisions import TYPES

pytestmark = pytest.mark.gpu

LAYERS = [(128, 4096, 9216), (128, 4096, 4096), (1, 1000, 4096), (129, 333, 77), (2048, 3072, 768)]
IMAGES = [  # AlexNet's convolutions at batch 16, with the pooling that follows, and a VGG block
    ((16, 64, 55, 55), Pool2dGeometry(3, 3, 2, 2)),
    ((16, 192, 27, 27), Pool2dGeometry(3, 3, 2, 2)),
    ((16, 384, 13, 13), Pool2dGeometry()),
    ((8, 64, 56, 56), Pool2dGeometry(2, 2, 2, 2)),
    ((3, 5, 17, 9), Pool2dGeometry(3, 2, 2, 1, 1, 1, ceil_mode=True)),
]


def numbers(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def with_gradients(
    function: Callable[..., Tensor], inputs: list[Tensor], dtype: torch.dtype, sent: Tensor | None = None
) -> list[Tensor]:
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
    y = function(*leaves)
    upstream = torch.linspace(-9, 9, y.numel(), device="cuda").sin().view(y.shape).bfloat16().to(y)
    return [y.detach(), *torch.autograd.grad(y, leaves, upstream if sent is None else upstream * sent)]


def hold(ours: Callable[..., Tensor], plain: Callable[..., Tensor], inputs: list[Tensor], factor: float) -> None:
    """As accurate as plain torch; nothing is sent back to where rounding alone decides on which side of 0 it is."""
    dtype = inputs[0].dtype
    x, w, b = (one.double() for one in inputs)
    sent = torch.nn.functional.linear(x, w, b).abs() > 0.05
    results = zip(
        with_gradients(ours, inputs, dtype, sent),
        with_gradients(plain, inputs, dtype, sent),
        with_gradients(plain, inputs, torch.float64, sent),
        strict=True,
    )
    for place, (a, b, c) in enumerate(results):
        # An activation leaves columns with hardly a value, of which one rounding is much.
        assert_as_accurate(a, b, c, worst=factor, mean=factor, slices=place > 0, what=f"result {place}")


def library_linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Plain torch; a single row is one of 16, as alone the library would multiply it without tensor cores."""
    rows = x.shape[0]
    return reference.linear(x.expand(16, -1) if rows == 1 else x, w, b, activation="relu")[:rows]


@pytest.mark.parametrize("impl", ["kernel", "cublaslt"])
@pytest.mark.parametrize("shape", LAYERS, ids=str)
def test_linear_layers(precision: str, shape: tuple[int, int, int], impl: Impl, poisoned_empty: None) -> None:
    rows, outputs, inputs = shape
    dtype = TYPES[precision]
    x, b = numbers(rows, inputs, dtype=dtype), numbers(outputs, dtype=dtype)
    w = (numbers(outputs, inputs, dtype=torch.float32) / inputs**0.5).to(dtype)
    # Tensor cores cut TF32 operands off where the library rounds them.
    factor = 4.0 if precision == "tf32" else 3.0
    ours = partial(functional.linear, impl=impl)
    hold(ours, library_linear, [x, w, b], factor)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(precision: str, activation: Activation) -> None:
    dtype = TYPES[precision]
    operands = [numbers(77, 90, dtype=dtype), numbers(130, 90, dtype=dtype) / 9, numbers(130, dtype=dtype)]
    ours = partial(functional.linear, activation=activation, impl="kernel")
    hold(ours, partial(reference.linear, activation=activation), operands, 4.0 if precision == "tf32" else 3.0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(("shape", "window"), IMAGES, ids=str)
@pytest.mark.parametrize("l1_bypass", [False, True])
def test_pooling_is_as_torch_does_it_bit_by_bit(
    precision: str, shape: tuple[int, ...], window: Pool2dGeometry, layout: torch.memory_format, l1_bypass: bool,
    poisoned_empty: None,
) -> None:  # fmt: skip
    dtype = TYPES[precision]
    x, b = numbers(*shape, dtype=dtype).contiguous(memory_format=layout), numbers(shape[1], dtype=dtype)
    ours = partial(functional.bias_relu_max_pool2d, pool=window, impl="kernel", l1_bypass=l1_bypass)
    plain = partial(reference.bias_relu_max_pool, pool=window)
    y, *gradients = with_gradients(ours, [x, b], dtype)
    expected, *theirs = with_gradients(plain, [x, b], dtype)
    assert torch.equal(y, expected) and y.stride() == expected.stride()
    # The same pixels win in float64 only if they are compared as they were rounded.
    rounded = (x + b[:, None, None]).double()
    _, *truth = with_gradients(plain, [rounded, torch.zeros_like(b, dtype=torch.float64)], torch.float64)
    for mine, other, exact, what in zip(gradients, theirs, truth, ("dx", "db"), strict=True):
        assert_as_accurate(mine, other, exact, what=what)


@pytest.mark.parametrize("impl", ["auto", "kernel", "cublaslt"])
def test_alexnet_computes_the_same_fused(impl: Impl) -> None:
    torch.manual_seed(0)
    with precision_mode("fp32", autotune=False):
        plain = create("alexnet", None).cuda().eval()
        fused, record = convert(copy.deepcopy(plain), Fusion(impl=impl))
        assert len(record.replaced) == 7
        x = torch.randn(4, 3, 224, 224, device="cuda")
        ours, theirs = (torch.autograd.grad(m(x).square().sum(), list(m.parameters())) for m in (fused, plain))
        for a, b in zip(ours, theirs, strict=True):
            assert (a - b).norm() <= 5e-3 * b.norm()


def test_fused_layers_are_compiled_and_captured() -> None:
    model, _ = convert(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2)).cuda(), Fusion())
    x = torch.randn(2, 3, 9, 9, device="cuda")
    expected = model(x)
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    graph.replay()
    torch.testing.assert_close(y, expected)

"""The laws of a method, run for fused layers."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate import convert
from lamina.accelerate.common.geometry import Pool2dGeometry
from lamina.accelerate.methods.fusion import Fusion, functional, kernels, ops, reference
from lamina.accelerate.methods.fusion import convert as cell
from lamina.accelerate.methods.fusion.config import ACTIVATIONS, Activation
from lamina.accelerate.methods.fusion.nn import FusedConv2d, FusedLinear
from lamina.errors import UnsupportedError
from lamina.spec import Cost
from lamina.testing.method_contract import Layer, MethodContract, Product

pytestmark = pytest.mark.usefixtures("where_kernels_run")

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
MAPS = [(1, 1, 1), (5, 37, 7), (2, 33, 17), (17, 20, 300)]  # rows, outputs, inputs: odd, single, with a split sum
IMAGES: list[tuple[tuple[int, ...], Pool2dGeometry]] = [  # odd sizes, overlap, padding, gaps, ceiling, one pixel
    ((2, 37, 7, 5), Pool2dGeometry(3, 3, 2, 2)),
    ((1, 5, 4, 6), Pool2dGeometry(2, 2, 2, 2)),
    ((2, 37, 5, 5), Pool2dGeometry(3, 2, 2, 1, 1, 1, ceil_mode=True)),
    ((1, 1, 6, 3), Pool2dGeometry(1, 1, 2, 3)),
    ((1, 4, 1, 1), Pool2dGeometry()),
    ((2, 37, 5, 3), Pool2dGeometry()),  # of few bias gradients plain torch may err in none
    ((3, 70, 9, 9), Pool2dGeometry(2, 3, 2, 3)),
]


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def strided_linear(activation: Activation, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """With operands whose rows are columns of others, so that no stride is 1 but the wrong one."""
    turned = w.mT.contiguous().mT
    return functional.linear(x.mT.contiguous().mT, turned, b, activation=activation, impl="kernel")


def pooled(window: Pool2dGeometry, layout: torch.memory_format, x: Tensor, b: Tensor) -> Tensor:
    return functional.bias_relu_max_pool2d(x.contiguous(memory_format=layout), b, window, impl="kernel")


class Fusions:
    config = Fusion(impl="reference")
    cell: ModuleType = cell
    impls = ("reference", "kernel", *(["cublaslt"] if torch.cuda.is_available() else []))
    rounds_gradients: Mapping[str, str] = {}

    def roundtrip(self, layer: Any) -> Any:
        again = type(layer).from_dense(layer.to_dense(), impl="reference")
        assert all(ours is theirs for ours, theirs in zip(layer.parameters(), again.parameters(), strict=True))
        return again

    def layers(self) -> Mapping[str, Layer]:
        return {
            "linear relu": Layer(lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU()), (3, 6)),
            "linear gelu": Layer(lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.GELU()), (2, 3, 6)),
            "conv relu": Layer(
                lambda: nn.Sequential(nn.Conv2d(4, 6, 3, 2, padding="valid", groups=2), nn.ReLU()), (2, 4, 7, 5)
            ),
            "conv relu pool": Layer(
                lambda: nn.Sequential(
                    nn.Conv2d(3, 4, (3, 2), padding=1, dilation=2, bias=False), nn.ReLU(),
                    nn.MaxPool2d(3, (2, 1), 1, ceil_mode=True),
                ), (1, 3, 8, 8), compiled=False,
            ),
        }  # fmt: skip

    def refused(self) -> Mapping[str, nn.Module]:
        return {
            "lone linear": nn.Linear(4, 4),
            "lone activation": nn.Tanh(),
            "lone convolution": nn.Conv2d(2, 2, 1),
            "reflecting": nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
            "norm": nn.BatchNorm2d(8),
        }

    def references(self) -> Iterable[tuple[str, Callable[..., Tensor], tuple[Tensor, ...]]]:
        for activation in ACTIVATIONS:
            ours = partial(reference.linear, activation=activation)
            yield activation, ours, (numbers(2, 3), numbers(4, 3), numbers(4))
        window = Pool2dGeometry(2, 2, 1, 2, 1, 0)
        yield "pool", lambda x, b: reference.bias_relu_max_pool(x, b, window), (numbers(1, 2, 3, 4), numbers(2))

    def products(self) -> Iterable[Product]:
        for rows, outputs, inputs in MAPS:
            operands = numbers(rows, inputs), numbers(outputs, inputs), numbers(outputs)
            small = (rows, outputs, inputs) == (5, 37, 7)
            for activation in ACTIVATIONS if small else ("relu",):
                plain = partial(reference.linear, activation=activation)
                for dtype in (FP32, BF16, FP16) if small else (FP32,):
                    name = f"{activation} {rows}x{inputs}>{outputs}"
                    yield Product(name, partial(strided_linear, activation), plain, operands, dtype)
        for shape, window in IMAGES:
            for layout in (torch.contiguous_format, torch.channels_last):
                plain = partial(reference.bias_relu_max_pool, pool=window)
                operands = numbers(*shape), numbers(shape[1])
                name, ours = f"{window} {layout}", partial(pooled, window, layout)
                yield Product(name, ours, plain, operands, FP32)

    def operators(self) -> Iterable[tuple[Any, tuple[Any, ...]]]:
        def leaf(*shape: int) -> Tensor:
            return torch.randn(shape, requires_grad=True)

        yield ops.linear, (leaf(3, 4), leaf(5, 4), leaf(5), "relu", True, False)
        yield ops.linear, (leaf(3, 4), leaf(5, 4), None, "gelu", True, True)
        yield ops.linear_cublaslt, (leaf(3, 4), leaf(5, 4), leaf(5))
        yield ops.activation_backward, (torch.randn(3, 4), torch.randn(3, 4), "tanh", False)
        yield ops.bias_relu_max_pool, (leaf(1, 2, 5, 4), leaf(2), Pool2dGeometry(3, 2, 2, 2).pack(), False)
        yield ops.bias_relu_max_pool, (leaf(1, 2, 3, 4), None, Pool2dGeometry().pack(), True)
        winners = torch.zeros(1, 2, 2, 2, dtype=torch.int8)
        window = Pool2dGeometry(2, 2, 2, 2).pack()
        yield ops.bias_relu_max_pool_backward, (torch.randn(1, 2, 2, 2), winners, 4, 4, window, False)

    def costs(self) -> Iterable[tuple[Cost, Cost]]:
        # 2 rows, 3 columns, 5 summed: 60 operations of the product, 6 activations; 10 + 15 + 3 numbers to read.
        yield kernels.linear_cost(2, 3, 5, 2), Cost(66, 56, 12)
        # In two shares, 12 float32 numbers are written and read again; what GELU needs is written besides.
        yield kernels.linear_cost(2, 3, 5, 4, 2, keep=True), Cost(66, 112 + 48, 48 + 48)
        yield kernels.activation_backward_cost(2, 3, 4), Cost(12, 48, 24)
        # 16 pixels to 4, 2 channels, bf16; a byte besides each result.
        yield kernels.pool_cost(16, 4, 2, 2), Cost(64, 68, 24)
        yield kernels.pool_backward_cost(16, 4, 2, 2), Cost(32, 24, 64)

    def faults(self) -> Mapping[str, tuple[Callable[[], object], tuple[str, ...]]]:
        x, w, image = torch.zeros(2, 8), torch.zeros(6, 8), torch.zeros(1, 2, 4, 4)
        taps = torch.zeros(3, 2, 3, 3)
        bad = cell.replace

        def apply(**changes: Any) -> Callable[[], object]:
            operands: dict[str, Any] = {"x": x, "weight": w, "bias": None, "impl": "reference"} | changes
            return lambda: functional.linear(**operands)

        return {
            "impl": (lambda: Fusion(impl="kernels"), ("kernels", "did you mean 'kernel'")),  # type: ignore[arg-type]
            "pool": (lambda: Fusion(pool=1), ("true or false", "got 1")),  # type: ignore[arg-type]
            "activation": (apply(activation="selu"), ("selu", "did you mean")),
            "width": (apply(x=torch.zeros(2, 7)), ("(..., 8)", "(2, 7)")),
            "weight": (apply(weight=torch.zeros(8)), ("(out_features, in_features)", "(8,)")),
            "bias": (apply(bias=torch.zeros(5)), ("expected (6,)", "got (5,)")),
            "type": (apply(weight=w.double()), ("torch.float32", "torch.float64", "autocast")),
            "integers": (apply(x=torch.zeros(2, 8, dtype=torch.int64)), ("floating point", "torch.int64")),
            "kernel type": (apply(x=x.double(), weight=w.double(), impl="kernel"), ("float32", "float64")),
            "kernel place": (apply(x=x.to("meta"), weight=w.to("meta"), impl="kernel"), ("CUDA device", "meta")),
            "library activation": (apply(activation="tanh", impl="cublaslt"), ("ReLU and a bias", "tanh")),
            "library bias": (apply(impl="cublaslt"), ("ReLU and a bias", "without bias")),
            "library convolution": (lambda: functional.conv2d(image, taps, impl="cublaslt"), ("linear layers",)),
            "image axes": (lambda: functional.bias_relu_max_pool2d(x), ("(N, C, H, W)", "(2, 8)")),
            "image bias": (lambda: functional.bias_relu_max_pool2d(image, torch.zeros(3)), ("(2,)", "(3,)")),
            "channels": (lambda: functional.conv2d(torch.zeros(1, 3, 4, 4), taps), ("(N, 2, H, W)", "(1, 3, 4, 4)")),
            "taps": (lambda: functional.conv2d(image, w), ("(out_channels, in_channels, KH, KW)", "(6, 8)")),
            "small": (lambda: functional.bias_relu_max_pool2d(image, None, Pool2dGeometry(5, 5)), ("5x5", "4x4")),
            "window": (lambda: functional.check_pool(Pool2dGeometry(12, 12)), ("at most 127", "144")),
            "large": (lambda: functional.bias_relu_max_pool2d(image, None, Pool2dGeometry(12, 12)), ("at most 127",)),
            "padding": (lambda: Pool2dGeometry(3, 3, 1, 1, 2, 0), ("at most half", "got 2")),
            "stride": (lambda: Pool2dGeometry(3, 3, 0, 1), ("at least 1", "0")),
            "pair": (lambda: FusedLinear.from_dense(nn.Sequential(nn.Linear(2, 2))), ("its activation", "Linear")),
            "triple": (lambda: FusedConv2d.from_dense(nn.Sequential(nn.Tanh())), ("its ReLU", "Tanh")),
            "sequence": (lambda: bad(nn.Sequential(nn.Linear(2, 2), nn.Dropout()), Fusion()), ("neither a Linear",)),
        }


class TestFusion(MethodContract):
    provider = Fusions()

    def test_every_skipped_layer_says_why(self) -> None:
        # The layer taken is a sequence, whose fused layer has the name of its first part.
        refused = self.provider.refused()
        for layer in self.provider.layers().values():
            model, record = convert(nn.ModuleDict({**refused, "taken": layer.make()}), self.provider.config)
            skipped = {one.layer: one.refusal for one in record.skipped}
            assert skipped == {name: cell.refusal(module) for name, module in refused.items()}
            assert all(model.get_submodule(name) is module for name, module in refused.items())
            assert [one.layer for one in record.replaced] == ["taken.0"]


def test_ties_and_nan_are_as_in_torch() -> None:
    x = torch.zeros(1, 2, 4, 4)
    x[0, 0, :2, :2] = 3.0
    x[0, 1, 1, 1] = float("nan")
    results = []
    for function in (functional.bias_relu_max_pool2d, partial(functional.bias_relu_max_pool2d, impl="reference")):
        leaf = x.clone().requires_grad_()
        y = function(leaf, torch.full((2,), 0.5), Pool2dGeometry(2, 2, 2, 2), **({} if results else {"impl": "kernel"}))
        results.append((y, torch.autograd.grad(y, leaf, torch.ones_like(y))[0]))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_a_gradient_that_is_an_expanded_number_is_read_right() -> None:
    x, w, b = (torch.randn(shape, requires_grad=True) for shape in ((3, 4), (5, 4), (5,)))
    ours = torch.autograd.grad(functional.linear(x, w, b, impl="kernel").sum(), (x, w, b))
    plain = torch.autograd.grad(F.relu(F.linear(x, w, b)).sum(), (x, w, b))
    for a, c in zip(ours, plain, strict=True):
        torch.testing.assert_close(a, c)


@pytest.mark.parametrize("bypass", [False, True])
def test_going_past_l1_changes_no_result(bypass: bool) -> None:
    x, b = torch.randn(2, 3, 6, 6), torch.randn(3)
    y = functional.bias_relu_max_pool2d(x, b, Pool2dGeometry(3, 3, 2, 2), impl="kernel", l1_bypass=bypass)
    assert torch.equal(y, reference.bias_relu_max_pool(x, b, Pool2dGeometry(3, 3, 2, 2)))


def test_nothing_comes_of_nothing() -> None:
    assert functional.linear(torch.zeros(0, 4), torch.zeros(5, 4), torch.ones(5), impl="kernel").shape == (0, 5)
    assert functional.bias_relu_max_pool2d(torch.zeros(0, 2, 4, 4), impl="kernel").shape == (0, 2, 4, 4)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_that_is_not_zeros_is_refused_without_convert_too(mode: str) -> None:
    dense = nn.Conv2d(2, 2, 3, padding=1, padding_mode=mode)
    with pytest.raises(UnsupportedError, match=f"padding_mode='{mode}'.*pad in front of") as error:
        FusedConv2d.from_dense(nn.Sequential(dense, nn.ReLU()))
    assert str(error.value) == cell.refusal(dense)

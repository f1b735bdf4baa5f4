"""The laws of a method, run for layers whose operands are packed in shared memory."""

import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate import convert
from lamina.accelerate.papers.on_chip_fission import convert as cell
from lamina.accelerate.papers.on_chip_fission import functional, ops, reference
from lamina.accelerate.papers.on_chip_fission.config import Impl, OnChip, OnChipFission, Tile
from lamina.accelerate.papers.on_chip_fission.nn import OnChipConv2d, OnChipLinear
from lamina.errors import UnsupportedError
from lamina.spec import Cost
from lamina.testing import assert_as_accurate
from lamina.testing.method_contract import Layer, MethodContract, Product

pytestmark = [
    pytest.mark.usefixtures("where_kernels_run"),
    pytest.mark.skipif(
        not torch.cuda.is_available() and shutil.which("g++") is None, reason="g++ is not installed"
    ),
]  # fmt: skip


@pytest.fixture(autouse=True)
def kernels_run(request: pytest.FixtureRequest) -> None:
    if not torch.cuda.is_available():
        request.getfixturevalue("without_gpu")


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def ours(index: Tensor | None, tile: Tile, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """With an input whose rows are columns of another."""
    kernel = partial(functional.linear, format="float", tile=tile, impl="kernel")
    return kernel(x.mT.contiguous().mT, w, b, None if index is None else index.to(x.device))


def plain(index: Tensor | None, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x if index is None else x[:, index.to(x.device)], w, b)


class OnChipProvider:
    config = OnChipFission("float", 4, impl="reference")
    cell: ModuleType = cell
    impls = ("reference", "kernel")
    rounds_gradients: Mapping[str, str] = {}

    def roundtrip(self, layer: Any) -> Any:
        return type(layer).from_dense(layer.to_dense(), self.config)

    def layers(self) -> Mapping[str, Layer]:
        return {
            "linear": Layer(lambda: nn.Linear(6, 5), (3, 6)),
            "no bias": Layer(lambda: nn.Linear(6, 5, bias=False), (2, 3, 6)),
            "conv2d": Layer(lambda: nn.Conv2d(4, 6, (3, 2), 2, padding=1, dilation=(1, 2)), (2, 4, 7, 6)),
            "valid": Layer(lambda: nn.Conv2d(4, 6, 3, padding="valid", bias=False), (1, 4, 5, 5)),
        }

    def refused(self) -> Mapping[str, nn.Module]:
        return {
            "groups": nn.Conv2d(4, 4, 3, groups=2),
            "same": nn.Conv2d(4, 4, 3, padding="same"),
            "reflecting": nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
            "conv1d": nn.Conv1d(2, 2, 3),
        }

    def references(self) -> Iterable[tuple[str, Callable[..., Tensor], tuple[Tensor, ...]]]:
        index = torch.tensor([2, 0])
        yield (
            "linear", lambda x, w, b: reference.linear(x, w, b, index.to(x.device), "float"),
            (numbers(3, 4), numbers(2, 2), numbers(2)),
        )  # fmt: skip
        steps = (2, 1), (1, 0), (1, 1)
        yield (
            "conv", lambda x, w, b: reference.conv2d(x, w, b, None, "float", *steps),
            (numbers(1, 2, 4, 3), numbers(3, 2, 2, 2), numbers(3)),
        )  # fmt: skip

    def products(self) -> Iterable[Product]:
        for rows, outputs, inputs, kept, tile in ((1, 1, 1, 0, 4), (5, 37, 7, 0, 6), (2, 33, 18, 5, 4)):
            index = torch.randperm(inputs)[:kept] if kept else None
            operands = numbers(rows, inputs), numbers(outputs, kept or inputs), numbers(outputs)
            name = f"{rows}x{inputs}>{outputs} keep {kept}"
            yield Product(name, partial(ours, index, tile), partial(plain, index), operands, torch.float32)

    def operators(self) -> Iterable[tuple[Any, tuple[Any, ...]]]:
        def leaf(*shape: int) -> Tensor:
            return torch.randn(shape, requires_grad=True)

        for format in ("half", "deft16q", "e4m3"):
            yield reference.read_operator, (leaf(2, 5), format)
        yield reference.read_operator, (torch.randn(5, 3, dtype=torch.float16).mT.requires_grad_(), "half")
        yield ops.product, (leaf(3, 4), leaf(5, 4), None, [], "float", 4)
        yield ops.product, (leaf(3, 4), leaf(5, 2), torch.tensor([3, 0]), [], "half", 4)
        yield ops.product, (leaf(1, 2, 5, 4), leaf(3, 2, 2, 3), None, [2, 1, 1, 0, 1, 1], "deft16q", 4)
        yield ops.product, (leaf(1, 2, 5, 4), leaf(3, 1, 2, 3), torch.tensor([1]), [1, 1, 0, 0, 1, 1], "float", 4)

    def costs(self) -> Iterable[tuple[Cost, Cost]]:
        return ()

    def faults(self) -> Mapping[str, tuple[Callable[[], object], tuple[str, ...]]]:
        x, w = torch.zeros(2, 8), torch.zeros(6, 8)

        def apply(x: Tensor, **more: Any) -> Callable[[], object]:
            return lambda: functional.linear(x, w.to(x.dtype), **more)

        return {
            "format": (lambda: OnChipFission("fp8"), ("format 'fp8'", "float")),  # type: ignore[arg-type]
            "tile": (lambda: OnChipFission(tile=5), ("one of 4, 6, 8", "got 5")),  # type: ignore[arg-type]
            "keep": (lambda: OnChipFission(keep=0), ("above 0 and up to 1", "got 0")),
            "width": (apply(torch.zeros(2, 7)), ("(..., 8)", "(2, 7)")),
            "image": (lambda: functional.conv2d(x, w), ("(N, 8, H, W)", "(2, 8)")),
            "type": (apply(x.double(), impl="kernel"), ("expected float32", "float64", "impl=reference")),
            "impl": (apply(x, impl="kernels"), ("kernels", "did you mean 'kernel'")),
            "layer": (lambda: cell.replace(nn.ReLU(), OnChipFission()), ("ReLU",)),
        }


class TestOnChipFission(MethodContract):
    provider = OnChipProvider()


@pytest.mark.parametrize(("format", "tile"), [("half", 4), ("deft16q", 6), ("e5m2", 8)])
@pytest.mark.parametrize("keep", [1.0, 0.5])
def test_the_kernel_computes_the_definition_with_and_without_elimination(
    format: OnChip, tile: Tile, keep: float
) -> None:
    torch.manual_seed(0)
    for dense, x in ((nn.Linear(10, 7), torch.randn(3, 10)), (nn.Conv2d(6, 5, 3, 2, 1), torch.randn(2, 6, 5, 4))):
        kernel: Any = cell.replace(dense, OnChipFission(format, tile, keep, impl="kernel"))
        definition: Any = cell.replace(dense, OnChipFission(format, tile, keep, impl="reference"))
        assert kernel.weight.shape[1] == round(keep * dense.weight.shape[1])
        y, expected, exact = kernel(x), definition(x), definition.double()(x.double())
        assert_as_accurate(y, expected, exact, worst=3.0, what=f"{format} {type(dense).__name__}")


def test_elimination_keeps_the_channels_and_the_scale_of_the_method() -> None:
    from lamina.accelerate.methods.elimination import Eliminated
    from lamina.accelerate.methods.elimination.convert import replace

    dense, x = nn.Conv2d(8, 6, 3), torch.randn(2, 8, 5, 5)
    both = cell.replace(dense, OnChipFission("float", keep=0.5, impl="reference"))
    alone = replace(dense, Eliminated(keep=0.5, impl="gather"))
    torch.testing.assert_close(both(x), alone(x))
    torch.testing.assert_close(both.to_dense()(x), alone(x))


def test_a_converted_network_shares_parameters_and_reports_what_ran() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 4))
    weight = network[0].weight
    model, record = convert(network, OnChipFission("deft16", 8))
    assert isinstance(model[0], OnChipConv2d) and isinstance(model[3], OnChipLinear)
    assert model[0].weight is weight and len(record.replaced) == 2
    model(torch.randn(2, 3, 5, 5)).square().sum().backward()
    assert weight.grad is not None
    impl = "kernel" if torch.cuda.is_available() else "reference"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert model[0].executed("forward") == (f"on-chip-fission[format=deft16,tile=8,impl={impl}]", f"auto on {device}")


@pytest.mark.parametrize("format", ["half", "deft16q", "e4m3"])
@pytest.mark.parametrize("impl", ["reference", "kernel"])
@pytest.mark.parametrize("keep", [1.0, 0.5])
def test_compiled_layers_are_one_graph_and_give_the_same(format: OnChip, impl: Impl, keep: float) -> None:
    for dense, x in ((nn.Linear(10, 7), torch.randn(3, 10)), (nn.Conv2d(6, 5, 3, 2, 1), torch.randn(2, 6, 5, 4))):
        layer = cell.replace(dense, OnChipFission(format, 4, keep, impl))
        torch.compiler.reset()
        results = []
        for function in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
            leaf = x.clone().requires_grad_()
            y = function(leaf)
            results.append((y, *torch.autograd.grad(y.square().sum(), [leaf, *layer.parameters()])))
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_that_is_not_zeros_is_refused_without_convert_too(mode: str) -> None:
    dense = nn.Conv2d(2, 2, 3, padding=1, padding_mode=mode)
    with pytest.raises(UnsupportedError, match=f"mode '{mode}'.*pad in front of") as error:
        OnChipConv2d.from_dense(dense, OnChipFission())
    assert str(error.value) == cell.refusal(dense)

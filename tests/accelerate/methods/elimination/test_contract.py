"""The laws of a method, run for layers without some of their inputs."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate.methods.elimination import Eliminated, functional, kernels, ops, reference
from lamina.accelerate.methods.elimination import convert as cell
from lamina.accelerate.methods.elimination.config import By, Impl, Order
from lamina.accelerate.methods.elimination.functional import Lookup, lookup
from lamina.accelerate.methods.elimination.nn import EliminatedConv2d, EliminatedLinear, EliminatedLSTM
from lamina.accelerate.methods.elimination.tiles import Tile
from lamina.errors import LaminaError
from lamina.run import precision_mode
from lamina.spec import Cost
from lamina.testing.method_contract import Layer, MethodContract, Product

pytestmark = pytest.mark.usefixtures("where_kernels_run")

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
MAPS = [(1, 1, [0], 3), (5, 37, [2, 0, 4, 6, 5], 9), (17, 20, list(range(3, 300)), 300)]  # rows, outputs, index, inputs
IMAGES = [  # image, outputs, kernel, stride, padding, dilation
    ((2, 5, 6, 5), 7, (3, 2), (2, 1), (1, 1), (1, 2)),
    ((1, 4, 3, 4), 3, (1, 1), (1, 2), (0, 0), (1, 1)),
]


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def strided_linear(at: Lookup, impl: Impl, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """With operands whose rows are columns of others, so that no stride is 1 but the wrong one."""
    turned = w.mT.contiguous().mT
    return functional.linear(x.mT.contiguous().mT, turned, b, at, impl=impl)


def dense_linear(at: Lookup, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """What no index has a part in: the dense layer with zeros."""
    return F.linear(x, reference.dense_weight(w, at.kept, at.inputs), b)


def dense_conv(at: Lookup, channels: int, steps: dict[str, Any], x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    full = reference.dense_weight(w, at.kept, channels, steps["kernel"])
    return F.conv2d(x, full, b, steps["stride"], steps["padding"], steps["dilation"])


def eliminated_conv(
    at: Lookup, steps: dict[str, Any], layout: torch.memory_format, impl: Impl, x: Tensor, w: Tensor, b: Tensor
) -> Tensor:
    return functional.conv2d(x.contiguous(memory_format=layout), w, b, at, **steps, impl=impl)


def convolution(by: By, image: tuple[int, ...], outputs: int, kernel: tuple[int, int]) -> tuple[Lookup, Tensor]:
    """A lookup of about half the inputs, not in their order, and a compacted weight."""
    taps = kernel[0] * kernel[1]
    total = image[1] * (taps if by == "tap" else 1)
    at = lookup(torch.randperm(total)[: total // 2 + 1], image[1], taps, by)
    return at, numbers(outputs, len(at.kept), *(kernel if by == "channel" else ()))


def repetitive() -> nn.Linear:
    """A layer of whose inputs the search keeps the first half, whatever the random weights are."""
    layer = nn.Linear(8, 6)
    with torch.no_grad():
        layer.weight[:, 4:] = 2 * layer.weight[:, :4]
    return layer


class Eliminations:
    config = Eliminated(keep=0.5, impl="gather")
    cell: ModuleType = cell
    impls = ("gather", "swap", "slice", "pack", "kernel")
    rounds_gradients: Mapping[str, str] = {}

    def roundtrip(self, layer: Any) -> Any:
        # The dense layer has zeros for what went, but not which inputs these were.
        return type(layer).from_dense(layer.to_dense(), layer.index, impl="gather")

    def layers(self) -> Mapping[str, Layer]:
        return {
            "linear": Layer(lambda: nn.Linear(10, 7), (3, 10)),
            "linear without bias": Layer(lambda: nn.Linear(8, 8, bias=False), (2, 3, 8), compiled=False),
            "linear of a prefix": Layer(repetitive, (3, 8), compiled=False),
            "conv1d": Layer(lambda: nn.Conv1d(6, 5, 3, dilation=2, padding=2), (2, 6, 9)),
            "conv2d": Layer(lambda: nn.Conv2d(12, 8, (3, 2), (2, 1), padding=1, padding_mode="reflect"), (2, 12, 5, 4)),
            "conv2d same": Layer(lambda: nn.Conv2d(4, 6, 3, padding="same"), (1, 4, 4, 5), compiled=False),
            "lstm": Layer(lambda: nn.LSTM(5, 6, 2, bidirectional=True), (3, 2, 5), compiled=False),
            "lstm batch first": Layer(lambda: nn.LSTM(4, 8, bias=False, batch_first=True), (2, 2, 4), compiled=False),
        }

    def refused(self) -> Mapping[str, nn.Module]:
        return {
            "activation": nn.ReLU(),
            "norm": nn.BatchNorm2d(8),
            "transposed": nn.ConvTranspose2d(8, 8, 2),
            "grouped": nn.Conv2d(8, 8, 3, groups=2),
            "single": nn.Linear(8, 1),
        }

    def references(self) -> Iterable[tuple[str, Callable[..., Tensor], tuple[Tensor, ...]]]:
        index = torch.tensor([3, 0, 4])
        yield "linear", lambda x, w, b: reference.linear(x, w, b, index), (numbers(2, 5), numbers(4, 3), numbers(4))
        yield "dense weight", lambda w: reference.dense_weight(w, index, 5), (numbers(2, 3, 2),)
        moved = torch.tensor([0, 1, 2])
        yield "swapped", lambda x: reference.swapped(x, index, moved, 1), (numbers(2, 5),)
        for by in ("channel", "tap"):
            at, w = convolution(by, (1, 3, 4, 3), 2, (2, 2))

            def conv(x: Tensor, w: Tensor, b: Tensor, by: By = by, at: Lookup = at) -> Tensor:
                steps = (2, 1), (1, 0), (1, 1)
                if by == "tap":
                    return reference.conv_taps(x, w, b, at.kept, (2, 2), *steps)
                return reference.conv(x, w, b, at.kept, *steps)

            yield f"conv by {by}", conv, (numbers(1, 3, 4, 3), w, numbers(2))

    def products(self) -> Iterable[Product]:
        for rows, outputs, index, inputs in MAPS:
            at = lookup(torch.tensor(index), inputs)
            operands = numbers(rows, inputs), numbers(outputs, len(index)), numbers(outputs)
            for dtype in (FP32, BF16, FP16) if rows == 5 else (FP32,):
                plain = partial(dense_linear, at)
                for impl in ("pack", "kernel"):
                    ours = partial(strided_linear, at, impl)
                    name = f"linear {rows}x{inputs}>{outputs} {impl}"
                    yield Product(name, ours, plain, operands, dtype)
        for image, outputs, kernel, stride, padding, dilation in IMAGES:
            steps = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
            for by in ("channel", "tap"):
                at, w = convolution(by, image, outputs, kernel)
                for layout, dtype in ((torch.contiguous_format, FP32), (torch.channels_last, BF16)):
                    plain = partial(dense_conv, at, image[1], steps)
                    operands = numbers(*image), w, numbers(outputs)
                    for impl in ("kernel", "pack") if by == "channel" else ("kernel",):
                        ours = partial(eliminated_conv, at, steps, layout, impl)
                        name = f"conv by {by} {kernel} {layout} {impl}"
                        yield Product(name, ours, plain, operands, dtype)

    def operators(self) -> Iterable[tuple[Any, tuple[Any, ...]]]:
        def leaf(*shape: int) -> Tensor:
            return torch.randn(shape, requires_grad=True)

        columns, pair = torch.tensor([2, 0, 3], dtype=torch.int32), [1, 1]
        yield ops.linear, (leaf(3, 4), leaf(5, 3), leaf(5), columns, 1, [])
        yield ops.linear, (leaf(3, 4), leaf(5, 3), None, columns, 1, Tile(16, 16, 16, 1).pack())
        image = leaf(1, 2, 3, 3)
        yield ops.linear, (leaf(3, 4), leaf(5, 2), leaf(5), None, 1, Tile(1, 2, 16).pack())
        yield ops.conv, (image, leaf(4, 3), leaf(4), columns, [2, 2], pair, [0, 1], pair, 1, [], False)
        last = image.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
        yield ops.conv, (last, leaf(4, 3), None, columns, [2, 2], [2, 1], [0, 0], pair, 1, [], True)
        yield ops.conv, (last, leaf(4, 4), leaf(4), None, [2, 2], pair, [1, 0], pair, 1, [], False)
        yield ops.pack, (image, torch.tensor([1, 0]))

    def costs(self) -> Iterable[tuple[Cost, Cost]]:
        # 2 rows, 3 outputs, 5 summed: 60 operations; 20 numbers of input, 15 weights, 3 biases, 5 entries of a table.
        yield kernels.product_cost(2, 3, 5, 20, 2), Cost(60, 76 + 20, 12)
        yield kernels.product_cost(2, 3, 5, 20, 4, split_k=2), Cost(60, 152 + 20 + 48, 24 + 48)

    def faults(self) -> Mapping[str, tuple[Callable[[], object], tuple[str, ...]]]:
        x, w, image = torch.zeros(2, 8), torch.zeros(6, 3), torch.zeros(1, 4, 5, 5)
        at = lookup(torch.tensor([1, 2, 5]), 8)
        channels = lookup(torch.tensor([1, 2]), 4, 9)
        taps, prefix = (lookup(torch.tensor(index), 4, 9, "tap") for index in ([1, 2], [0, 1]))
        large = lookup(torch.tensor([1, 2]), 4, 36)
        bad: Any = Eliminated

        def linear(**changes: Any) -> Callable[[], object]:
            operands: dict[str, Any] = {"x": x, "weight": w, "bias": None, "at": at, "impl": "gather"} | changes
            return lambda: functional.linear(**operands)

        def conv(**changes: Any) -> Callable[[], object]:
            operands: dict[str, Any] = {
                "x": image, "weight": torch.zeros(3, 2, 3, 3), "bias": None, "at": channels, "kernel": (3, 3),
                "impl": "gather",
            } | changes  # fmt: skip
            return lambda: functional.conv2d(**operands)

        def index(*places: int) -> Callable[[], object]:
            return lambda: EliminatedLinear(8, 6, list(places))

        return {
            "both": (lambda: bad(keep=0.5, alpha=0.5), ("keep or alpha", "omit one")),
            "keep": (lambda: bad(keep=0), ("above 0 and up to 1", "got 0")),
            "alpha": (lambda: bad(alpha=1.5), ("above 0 and up to 1", "got 1.5")),
            "recovery": (lambda: bad(recovery="scaled"), ("scaled", "did you mean 'scale'")),
            "by": (lambda: bad(by="taps"), ("taps", "did you mean 'tap'")),
            "order": (lambda: bad(order="sort"), ("sort", "did you mean 'sorted'")),
            "impl": (lambda: bad(impl="kernels"), ("kernels", "did you mean 'kernel'")),
            "prefix": (lambda: bad(order="prefix"), ("by='tap'", "got by='channel'")),
            "group": (lambda: bad(group=0), ("group", "at least 1", "got 0")),
            "align": (lambda: bad(align=True), ("align", "whole number", "True")),
            "data": (lambda: cell.replace(nn.Linear(4, 4), bad(recovery="bias")), ("calibration data", "'scale'")),
            "divide": (lambda: cell.replace(nn.Linear(6, 4), bad(group=4)), ("group 4", "6 inputs")),
            "one weight": (lambda: cell.replace(nn.Conv2d(4, 1, 3), bad(by="tap")), ("no correlation",)),
            "lstm": (lambda: cell.replace(nn.LSTM(4, 4), bad(impl="kernel")), ("LSTM has no impl='kernel'",)),
            "lstm input": (lambda: EliminatedLSTM(4, 3, [0, 1])(torch.zeros(3, 2)), ("4 features", "(3, 2)")),
            "lstm impl": (lambda: EliminatedLSTM.from_dense(nn.LSTM(4, 4), [0], impl="swap"), ("auto or gather",)),
            "groups": (lambda: EliminatedConv2d.from_dense(nn.Conv2d(4, 4, 3, groups=2), [0]), ("expected 1, got 2",)),
            "no index": (index(), ("from 0 to 7", "got none")),
            "out of range": (index(1, 8), ("from 0 to 7", "from 1 to 8")),
            "twice": (index(1, 1), ("distinct integers",)),
            "index axes": (lambda: EliminatedLinear(8, 6, torch.zeros(1, 2)), ("one axis", "(1, 2)")),
            "features": (lambda: EliminatedLinear(0, 6, [0]), ("in_features", "got 0")),
            "width": (linear(x=torch.zeros(2, 7)), ("(..., 8)", "(2, 7)")),
            "weight": (linear(weight=torch.zeros(6, 8)), ("(out, 3)", "(6, 8)")),
            "bias": (linear(bias=torch.zeros(5)), ("expected (6,)", "got (5,)")),
            "type": (linear(weight=w.double()), ("torch.float32", "torch.float64", "autocast")),
            "integers": (linear(x=torch.zeros(2, 8, dtype=torch.int64)), ("floating point", "torch.int64")),
            "device": (linear(weight=w.to("meta")), ("with x", "meta")),
            "slice": (linear(impl="slice"), ("first 3 inputs", "auto")),
            "kernel type": (linear(x=x.double(), weight=w.double(), impl="kernel"), ("float32", "float64")),
            "kernel place": (linear(x=x.to("meta"), weight=w.to("meta"), impl="kernel"), ("CUDA device", "meta")),
            "tile": (lambda: Tile(8, 16, 16), ("power of two", "got 8")),
            "workers": (lambda: Tile(16, 16, 16, num_warps=3), ("1 to 16 warps",)),
            "channels": (conv(x=torch.zeros(1, 3, 5, 5)), ("(N, 4, H, W)", "(1, 3, 5, 5)")),
            "window": (conv(weight=torch.zeros(3, 2, 3, 2)), ("(out, 2, 3, 3)", "(3, 2, 3, 2)")),
            "tap weight": (conv(at=taps), ("(out, 2)",)),
            "tap slice": (conv(at=prefix, weight=torch.zeros(3, 2), impl="slice"), ("by channel",)),
            "tap pack": (conv(at=taps, weight=torch.zeros(3, 2), impl="pack"), ("by channel",)),
            "small": (conv(x=torch.zeros(1, 4, 2, 5), impl="kernel"), ("at least the kernel's size", "(1, 4, 2, 5)")),
            "taps": (
                conv(x=torch.zeros(1, 4, 8, 8), at=large, kernel=(6, 6), weight=torch.zeros(3, 2, 6, 6), impl="kernel"),
                ("at most 31 taps", "got 36"),
            ),
        }  # fmt: skip


class TestElimination(MethodContract):
    provider = Eliminations()


@pytest.fixture
def repeatable() -> Iterator[None]:
    """The same choice of algorithm every time, and none that adds in any order, as the fastest on a GPU do."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        yield


@pytest.mark.usefixtures("repeatable")
@pytest.mark.parametrize("by", ["channel", "tap"])
@pytest.mark.parametrize("name", ["linear", "conv1d", "conv2d", "conv2d same", "lstm"])
def test_keeping_all_is_bitwise_dense(name: str, by: By) -> None:
    layer = Eliminations().layers()[name]
    dense, x = layer.make(), torch.randn(layer.input_shape)
    for config in (
        Eliminated(keep=1.0, by=by),
        Eliminated(keep=1.0, by=by, order="swap"),
        Eliminated(keep=0.99, by=by, align=64),
    ):
        ours = cell.replace(copy.deepcopy(dense), config)
        results = []
        for one in (ours, dense):
            leaf = x.clone().requires_grad_()
            y = one(leaf)
            y = y[0] if isinstance(y, tuple) else y
            reflected = x.is_cuda and getattr(one, "padding_mode", "zeros") != "zeros"  # added in any order
            wanted = [*one.parameters()] if reflected else [leaf, *one.parameters()]
            gradients = torch.autograd.grad(y.square().sum(), wanted)
            results.append([y, *(gradient.flatten() for gradient in gradients)])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("impl", ["gather", "swap", "pack", "kernel", "auto"])
def test_implementations_agree(impl: Impl) -> None:
    choices: tuple[tuple[By, Order], ...] = (
        *(("channel", "sorted"), ("channel", "swap")),
        *(("tap", "sorted"), ("tap", "swap"), ("tap", "prefix")),
    )
    for by, order in choices:
        if (by, impl) == ("tap", "pack"):
            continue
        config = Eliminated(keep=0.6, by=by, order=order, impl=impl)
        for dense, shape in ((nn.Linear(10, 7), (3, 10)), (nn.Conv2d(6, 5, 3, 2, 1), (2, 6, 5, 4))):
            layer: Any = cell.replace(dense, config)
            x = torch.randn(shape)
            torch.testing.assert_close(layer(x), layer.to_dense()(x), rtol=1e-4, atol=1e-5)


def test_a_prefix_is_a_slice() -> None:
    layer = EliminatedLinear.from_dense(nn.Linear(8, 5), range(3))
    assert layer.at.prefix and functional.chosen("auto", torch.zeros(2, 8), layer.at) == "slice"
    x = torch.randn(2, 8)
    assert torch.equal(layer(x), F.linear(x[:, :3], layer.weight, layer.bias))
    conv = EliminatedConv2d.from_dense(nn.Conv2d(8, 5, 3), range(3), impl="slice")
    image = torch.randn(1, 8, 4, 4)
    assert torch.equal(conv(image), F.conv2d(image[:, :3], conv.weight, conv.bias))


@pytest.mark.parametrize("splits", [1, 3, 20])
def test_a_prefix_is_summed_tap_by_tap(splits: int) -> None:
    layer = EliminatedConv2d.from_dense(nn.Conv2d(40, 17, 3, 1, 1), range(32), impl="kernel")
    layer.tile = tuple(Tile(16, 16, 16, splits).pack())
    x = torch.randn(1, 40, 3, 4).contiguous(memory_format=torch.channels_last)
    with precision_mode("fp32", autotune=False):
        torch.testing.assert_close(layer(x), layer.to_dense()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kept", [3, 16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("impl", ["pack", "kernel"])
def test_a_prefix_needs_no_table(impl: Impl, layout: torch.memory_format, kept: int) -> None:
    dense = nn.Conv2d(20, 5, 3, 2, 1)
    layer = EliminatedConv2d.from_dense(dense, range(kept), impl=impl)
    x = torch.randn(2, 20, 5, 7).contiguous(memory_format=layout)
    y = layer(x)
    torch.testing.assert_close(y, layer.to_dense()(x), rtol=1e-4, atol=1e-5)
    assert y.is_contiguous(memory_format=layout)
    row = EliminatedLinear.from_dense(nn.Linear(70, 9), range(kept), impl=impl)
    for rows in (1, 3):
        torch.testing.assert_close(row(some := torch.randn(rows, 70)), row.to_dense()(some), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("impl", ["gather", "kernel"])
def test_uneven_margins_are_as_the_dense_layer_has_them(impl: Impl) -> None:
    dense = nn.Conv2d(4, 6, (4, 3), padding="same", dilation=(1, 2))
    layer: Any = cell.replace(dense, Eliminated(keep=0.5, impl=impl))
    x = torch.randn(2, 4, 5, 6)
    torch.testing.assert_close(layer(x), layer.to_dense()(x), rtol=1e-4, atol=1e-5)


def test_nothing_comes_of_nothing() -> None:
    at = lookup(torch.tensor([1, 2]), 4)
    assert functional.linear(torch.zeros(0, 4), torch.zeros(5, 2), torch.ones(5), at, impl="kernel").shape == (0, 5)


def test_a_lookup_of_another_window_is_refused() -> None:
    x, weight = torch.zeros(1, 8, 5, 5), torch.zeros(3, 4, 3, 3)
    for taps in (1, 4):
        with pytest.raises(LaminaError, match=f"^at: expected a lookup of 9 taps, got one of {taps}"):
            functional.conv2d(x, weight, None, lookup(torch.arange(4), 8, taps), kernel=(3, 3))


def test_a_state_of_another_choice_is_loaded_and_a_wrong_one_refused() -> None:
    first, second = (EliminatedLinear.from_dense(nn.Linear(8, 5), index) for index in ([1, 2, 5], [0, 1, 2]))
    assert set(first.state_dict()) == {"weight", "bias", "index"}
    x = torch.randn(2, 8)
    first.load_state_dict(second.state_dict())
    assert torch.equal(first(x), second(x)) and first.at.prefix
    for places in ([1, 2, 8], [1, 1, 2], [-1, 0, 1]):
        state = second.state_dict() | {"index": torch.tensor(places)}
        with pytest.raises(LaminaError, match="^index: expected distinct integers from 0 to 7"):
            first.load_state_dict(state)
        assert torch.equal(first(x), second(x))
    for state in ({k: v for k, v in second.state_dict().items() if k != "index"}, second.state_dict() | {"more": x}):
        with pytest.raises(RuntimeError, match="index|more"):
            first.load_state_dict(state)


@pytest.mark.parametrize("name", ["linear", "conv1d", "conv2d"])
def test_kernels_are_compiled_in_one_graph(name: str) -> None:
    layer = Eliminations().layers()[name]
    ours = cell.replace(layer.make(), Eliminated(keep=0.5, impl="kernel"))
    x = torch.randn(layer.input_shape)
    torch.compiler.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), ours(x))


@pytest.mark.parametrize("name", ["linear", "conv2d"])
def test_autocast_decides_the_type(name: str) -> None:
    layer = Eliminations().layers()[name]
    dense, x = layer.make(), torch.randn(layer.input_shape)
    with torch.autocast(x.device.type, torch.bfloat16), torch.no_grad():
        results = [cell.replace(dense, Eliminated(keep=0.5, impl=impl))(x) for impl in ("kernel", "gather")]
        if name == "conv2d":
            by_tap = Eliminated(keep=0.5, impl="gather", by="tap")
            assert cell.replace(dense, by_tap)(x).dtype == BF16
    assert [y.dtype for y in results] == [BF16, BF16]
    torch.testing.assert_close(*results, rtol=3e-2, atol=3e-2)

"""Shapes and counts of layers against torch itself, hand counts, and laws that any layer keeps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from lamina.errors import SpecError
from lamina.spec import KINDS, Cost, Layer, Phase, Shape, elements
from lamina.spec.layers import (
    LSTM,
    Activation,
    AdaptivePooling,
    Add,
    Attention,
    BatchNorm,
    Bypass,
    Concat,
    Convolution,
    Dropout,
    Embedding,
    Flatten,
    LayerNorm,
    Linear,
    LocalResponseNorm,
    Multiply,
    Pooling,
    Softmax,
    Transpose,
)

FORWARD, DATA, WEIGHT = Phase
CONVOLUTIONS: list[tuple[dict[str, Any], Shape]] = [
    ({"out_channels": 8, "kernel": 3, "padding": 1}, (2, 4, 9, 9)),
    ({"out_channels": 8, "kernel": (3, 5), "stride": (1, 2), "bias": True}, (2, 4, 9, 9)),
    ({"out_channels": 8, "kernel": 3, "groups": 2, "stride": 2}, (2, 4, 9, 9)),
    ({"out_channels": 4, "kernel": 3, "groups": 4}, (3, 4, 7, 9)),
    ({"out_channels": 8, "kernel": 3, "dilation": (2, 1)}, (2, 4, 9, 9)),
    ({"out_channels": 6, "kernel": 3, "stride": 2, "transposed": True, "output_padding": 1}, (2, 4, 5, 6)),
    ({"out_channels": 6, "kernel": 3, "stride": 2, "transposed": True, "groups": 2}, (2, 4, 5, 5)),
    ({"out_channels": 8, "kernel": 5, "rank": 1, "dilation": 2}, (2, 4, 20)),
    ({"out_channels": 6, "kernel": 3, "rank": 1, "transposed": True, "stride": 3, "padding": 1}, (2, 4, 20)),
]


def torch_convolution(layer: Convolution, channels: int, device: str = "meta") -> nn.Module:
    kinds = {(1, False): nn.Conv1d, (2, False): nn.Conv2d, (1, True): nn.ConvTranspose1d, (2, True): nn.ConvTranspose2d}
    more = {"output_padding": layer.output_padding} if layer.transposed else {}
    return kinds[layer.rank, layer.transposed](
        channels, layer.out_channels, layer.kernel, layer.stride, layer.padding,
        dilation=layer.dilation, groups=layer.groups, bias=layer.bias, device=device, **more,
    )  # fmt: skip


def counted(work: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def counted_phases(module: nn.Module, shape: Shape) -> tuple[int, int, int]:
    """FlopCounterMode's counts of the three phases, each gradient on its own."""

    def backward(data: bool, weight: bool) -> int:
        module.requires_grad_(weight)
        y = module(torch.empty(shape, device="meta", requires_grad=data))
        return counted(lambda: y.sum().backward())

    forward = counted(lambda: module(torch.empty(shape, device="meta")))
    return forward, backward(True, False), backward(False, True)


@pytest.mark.parametrize(("settings", "shape"), CONVOLUTIONS)
def test_convolution_is_torch_s(settings: dict[str, Any], shape: Shape) -> None:
    layer = Convolution(name="c", **settings)
    module = torch_convolution(layer, shape[1])
    assert layer.output(shape) == module(torch.empty(shape, device="meta")).shape
    assert layer.parameters(shape) == {name: tuple(p.shape) for name, p in module.named_parameters()}
    forward, data, weight = counted_phases(module, shape)
    # FlopCounterMode takes the weight gradient of a grouped convolution for that of an ungrouped one.
    expected = [forward, data, weight // layer.groups]
    assert [layer.operations(phase, shape) for phase in Phase] == expected


@pytest.mark.parametrize(("settings", "shape"), CONVOLUTIONS)
def test_convolution_multiplies_as_often_as_ones_add_up(settings: dict[str, Any], shape: Shape) -> None:
    """Of tensors of ones each product is 1, so that a sum counts them; padding would hide some."""
    layer = Convolution(name="c", **settings | {"padding": 0, "bias": False, "output_padding": 0})
    module = torch_convolution(layer, shape[1], device="cpu")
    nn.init.ones_(module.weight)
    x = torch.ones(shape, requires_grad=True)
    y = module(x)
    y.sum().backward()
    products = [int(t.sum()) for t in (y, x.grad, module.weight.grad)]
    assert [layer.operations(phase, shape) for phase in Phase] == [2 * count for count in products]


@given(
    size=st.integers(1, 40), kernel=st.integers(1, 7), stride=st.integers(1, 5), padding=st.integers(0, 4),
    dilation=st.integers(1, 3), transposed=st.booleans(),
)  # fmt: skip
def test_convolution_s_size_rule(
    size: int, kernel: int, stride: int, padding: int, dilation: int, transposed: bool
) -> None:
    layer = Convolution(
        name="c", rank=1, out_channels=2, kernel=kernel, stride=stride, padding=padding, dilation=dilation,
        transposed=transposed,
    )  # fmt: skip
    try:
        expected = torch_convolution(layer, 3)(torch.empty(1, 3, size, device="meta")).shape
    except RuntimeError:
        with pytest.raises(ValueError, match="as large as the kernel"):
            layer.output((1, 3, size))
    else:
        assert layer.output((1, 3, size)) == expected


@given(size=st.integers(1, 40), kernel=st.integers(1, 7), stride=st.integers(1, 5), padding=st.integers(0, 3))
@pytest.mark.parametrize("rounding", ["floor", "ceil"])
def test_pooling_s_size_rule(rounding: str, size: int, kernel: int, stride: int, padding: int) -> None:
    if padding > kernel // 2:
        return  # torch refuses it
    layer = Pooling(name="p", kernel=kernel, stride=stride, padding=padding, rounding=rounding)
    x = torch.empty(1, 2, size, size, device="meta")
    try:
        expected = F.max_pool2d(x, kernel, stride, padding, ceil_mode=rounding == "ceil").shape
    except RuntimeError:
        with pytest.raises(ValueError, match="as large as the window"):
            layer.output(tuple(x.shape))
    else:
        assert layer.output(tuple(x.shape)) == expected


@pytest.mark.parametrize(
    ("size", "padding", "expected"),
    [
        (55, 0, 27),  # (55 - 3) / 2 + 1, exactly
        (56, 0, 28),  # the last window hangs over by one
        (5, 1, 3),  # starts at -1, 1, 3
        (6, 1, 4),  # starts at -1, 1, 3, 5
    ],
)
def test_caffe_pooling_keeps_the_last_window(size: int, padding: int, expected: int) -> None:
    layer = Pooling(name="p", kernel=3, stride=2, padding=padding, rounding="caffe")
    assert layer.output((1, 1, size, size)) == (1, 1, expected, expected)


def test_caffe_pooling_clips_only_where_both_axes_are_padded() -> None:
    def height(padding: tuple[int, int]) -> int:
        layer = Pooling(name="p", kernel=(2, 2), stride=(3, 3), padding=padding, rounding="caffe")
        return layer.output((1, 1, 6, 6))[2]

    # Of 6 + 2 rows, windows of 2 start at -1, 2, 5; of 6 rows, at 0, 3 and then 6, outside.
    assert [height((1, 1)), height((1, 0)), height((0, 0))] == [3, 3, 3]
    assert Pooling(name="p", kernel=2, stride=3, rounding="ceil").output((1, 1, 6, 6))[2] == 2


@pytest.mark.parametrize("shape", [(5, 12), (2, 3, 12)])
def test_linear_is_torch_s(shape: Shape) -> None:
    layer, module = Linear(name="l", out_features=7, bias=True), nn.Linear(12, 7, device="meta")
    assert layer.output(shape) == module(torch.empty(shape, device="meta")).shape
    assert layer.parameters(shape) == {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert tuple(layer.operations(phase, shape) for phase in Phase) == counted_phases(module, shape)


def test_spatial_linear_flattens_the_sample() -> None:
    layer = Linear(name="l", out_features=7, spatial=True)
    assert layer.output((5, 2, 3, 4)) == (5, 7, 1, 1)
    assert layer.parameters((5, 2, 3, 4)) == {"weight": (7, 24)}
    assert layer.operations(FORWARD, (5, 2, 3, 4)) == 2 * 5 * 24 * 7


@pytest.mark.parametrize("keys", [6, 9])
def test_attention_is_torch_s(keys: int) -> None:
    layer, shapes = Attention(name="a", heads=2), ((3, 2, 6, 4), (3, 2, keys, 4), (3, 2, keys, 8))
    q, k, v = (torch.empty(shape, device="meta", requires_grad=True) for shape in shapes)
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        y = F.scaled_dot_product_attention(q, k, v)
        forward = counted(lambda: F.scaled_dot_product_attention(q, k, v))
        backward = counted(lambda: y.sum().backward())
    assert layer.output(*shapes) == y.shape
    assert layer.operations(FORWARD, *shapes) == forward
    assert layer.operations(DATA, *shapes) == backward


def test_packed_and_separate_attention_cost_the_same() -> None:
    layer, apart = Attention(name="a", heads=4), ((2, 10, 16),) * 3
    packed = (2, 10, 48)
    assert layer.output(packed) == layer.output(*apart) == (2, 10, 16)
    for phase in (FORWARD, DATA):
        assert layer.cost(phase, packed, itemsize=4) == layer.cost(phase, *apart, itemsize=4)


@pytest.mark.parametrize("settings", [{}, {"layers": 2}, {"bidirectional": True, "layers": 2}, {"bias": False}])
def test_lstm_is_torch_s(settings: dict[str, Any]) -> None:
    layer = LSTM(name="l", hidden=5, **settings)
    options = {"num_layers": layer.layers, "bidirectional": layer.bidirectional, "bias": layer.bias}
    module = nn.LSTM(3, 5, batch_first=True, device="meta", **options)
    assert layer.output((2, 7, 3)) == module(torch.empty(2, 7, 3, device="meta"))[0].shape
    assert layer.parameters((2, 7, 3)) == {name: tuple(p.shape) for name, p in module.named_parameters()}


@pytest.mark.parametrize(
    ("layer", "module", "shape"),
    [
        (BatchNorm(name="b"), nn.BatchNorm2d(6), (4, 6, 5, 5)),
        (LayerNorm(name="n"), nn.LayerNorm(6), (4, 5, 6)),
        (LayerNorm(name="n", axes=2, bias=False), nn.LayerNorm((5, 6), bias=False), (4, 5, 6)),
        (LayerNorm(name="n", affine=False), nn.LayerNorm(6, elementwise_affine=False), (4, 6)),
        (AdaptivePooling(name="p", size=(2, 3)), nn.AdaptiveAvgPool2d((2, 3)), (4, 6, 7, 7)),
        (LocalResponseNorm(name="n"), nn.LocalResponseNorm(5), (4, 6, 7, 7)),
        (Flatten(name="f"), nn.Flatten(), (4, 6, 7, 7)),
        (Softmax(name="s", mode="last"), nn.Softmax(-1), (4, 9)),
    ],
)
def test_shapes_and_parameters_are_torch_s(layer: Layer, module: nn.Module, shape: Shape) -> None:
    assert layer.output(shape) == module(torch.zeros(shape)).shape
    assert layer.parameters(shape) == {name: tuple(p.shape) for name, p in module.named_parameters()}


def test_per_activation_batch_norm_has_a_mean_for_each_position() -> None:
    layer = BatchNorm(name="b", mode="per_activation")
    assert layer.parameters((8, 3, 4, 5)) == {"weight": (3, 4, 5), "bias": (3, 4, 5)}


SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


@given(SIZES, SIZES)
def test_sums_broadcast_as_torch_does(a: Shape, b: Shape) -> None:
    layer = Add(name="a")
    try:
        expected = tuple(torch.broadcast_shapes(a, b))
    except RuntimeError:
        with pytest.raises(ValueError, match="inputs of one shape"):
            layer.output(a, b)
    else:
        assert layer.output(a, b) == expected


def test_concat_and_transpose_are_torch_s() -> None:
    shapes = ((2, 3, 5), (2, 4, 5))
    joined = torch.cat([torch.empty(shape) for shape in shapes], dim=1)
    assert Concat(name="c").output(*shapes) == joined.shape
    assert Transpose(name="t").output(shapes[0]) == torch.empty(shapes[0]).transpose(1, 2).shape
    with pytest.raises(ValueError, match="equal to 2x3x5 except in axis 1, got 2x4x6"):
        Concat(name="c").output((2, 3, 5), (2, 4, 6))


def test_convolution_s_cost_by_hand() -> None:
    """2 pictures of 3x4x4, 5 filters of 3x3: 2x2 positions of 27 products for each of 5 x 2 maps."""
    layer, x = Convolution(name="c", out_channels=5, kernel=3), (2, 3, 4, 4)
    flops, picture, weight, result = 2 * 2 * 5 * 4 * 27, 96 * 4, 135 * 4, 40 * 4
    assert layer.cost(FORWARD, x, itemsize=4) == Cost(flops, picture + weight, result)
    assert layer.cost(DATA, x, itemsize=4) == Cost(flops, result + weight, picture)
    assert layer.cost(WEIGHT, x, itemsize=4) == Cost(flops, result + picture, weight)


def test_small_costs_by_hand() -> None:
    x = (2, 4, 6, 6)
    assert Pooling(name="p", kernel=3, stride=2).operations(FORWARD, x) == 9 * 2 * 4 * 2 * 2
    assert Activation(name="a").cost(FORWARD, x, itemsize=2) == Cost(288, 576, 576)
    assert LocalResponseNorm(name="n", size=5).operations(FORWARD, x) == (5 + 5 + 4) * 288
    within = LocalResponseNorm(name="n", size=5, mode="within_channel")
    assert within.operations(FORWARD, x) == (25 + 25 + 4) * 288
    assert within.operations(DATA, x) == (25 + 25 + 6) * 288
    assert within.cost(DATA, x, itemsize=4).bytes == 4 * 288 * 4
    assert Bypass(name="b").cost(FORWARD, x, itemsize=4) == Cost(0, 1152, 1152)
    assert Flatten(name="f").cost(FORWARD, x, itemsize=4) == Cost(0, 0, 0)
    assert Embedding(name="e", vocabulary=10, dim=3).cost(FORWARD, (2, 5), itemsize=4) == Cost(0, 30 * 4 + 80, 30 * 4)


def test_phases_are_those_with_something_to_compute() -> None:
    x = (2, 4, 6, 6)
    assert Convolution(name="c", out_channels=3, kernel=1).phases(x) == (FORWARD, DATA, WEIGHT)
    assert Convolution(name="c", out_channels=3, kernel=1, propagate=False).phases(x) == (FORWARD, WEIGHT)
    assert Activation(name="a").phases(x) == (FORWARD, DATA)
    assert Embedding(name="e", vocabulary=10, dim=3).phases((2, 5)) == (FORWARD, WEIGHT)
    assert Flatten(name="f").phases(x) == ()
    assert Add(name="a").phases(x, x) == (FORWARD,)
    assert Add(name="a").phases(x, (1, 4, 1, 1)) == (FORWARD, DATA)


IMAGE, SEQUENCE = (4, 6, 6), (5, 12)
SAMPLES: dict[str, tuple[Layer, tuple[Shape, ...]]] = {
    "convolution": (Convolution(name="c", out_channels=6, kernel=3, groups=2, bias=True), (IMAGE,)),
    "linear": (Linear(name="l", out_features=3, bias=True), (SEQUENCE,)),
    "pooling": (Pooling(name="p", kernel=3, stride=2), (IMAGE,)),
    "adaptive_pooling": (AdaptivePooling(name="p", size=2), (IMAGE,)),
    "activation": (Activation(name="a", function="gelu"), (IMAGE,)),
    "dropout": (Dropout(name="d"), (IMAGE,)),
    "bypass": (Bypass(name="b"), (IMAGE,)),
    "batch_norm": (BatchNorm(name="b"), (IMAGE,)),
    "layer_norm": (LayerNorm(name="n"), (SEQUENCE,)),
    "local_response_norm": (LocalResponseNorm(name="n"), (IMAGE,)),
    "softmax": (Softmax(name="s"), (IMAGE,)),
    "embedding": (Embedding(name="e", vocabulary=9, dim=4), ((5,),)),
    "attention": (Attention(name="a", heads=2), (SEQUENCE,)),
    "lstm": (LSTM(name="l", hidden=4), (SEQUENCE,)),
    "add": (Add(name="a"), (IMAGE, IMAGE)),
    "multiply": (Multiply(name="m"), (IMAGE, IMAGE)),
    "concat": (Concat(name="c"), (IMAGE, IMAGE)),
    "flatten": (Flatten(name="f"), (IMAGE,)),
    "transpose": (Transpose(name="t"), (SEQUENCE,)),
}


def test_every_kind_is_sampled() -> None:
    assert SAMPLES.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
@given(batch=st.integers(1, 64), times=st.integers(2, 5))
def test_cost_laws(kind: str, batch: int, times: int) -> None:
    layer, samples = SAMPLES[kind]
    few, many = ([(n, *sample) for sample in samples] for n in (batch, batch * times))
    assert layer.parameters(*few) == layer.parameters(*many)
    assert layer.output(*many) == (batch * times, *layer.output(*few)[1:])
    weights = elements(*layer.parameters(*few).values()) * 4
    for phase in layer.phases(*few):
        cost, larger = layer.cost(phase, *few, itemsize=4), layer.cost(phase, *many, itemsize=4)
        assert min(cost.flops, cost.bytes_read, cost.bytes_written) >= 0
        assert cost.bytes_read > 0
        assert cost.bytes_written > 0
        assert larger.flops == times * cost.flops
        assert cost.bytes <= larger.bytes <= times * cost.bytes
        assert times * cost.bytes - larger.bytes <= 3 * times * weights


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"embedding"}))
def test_bytes_follow_the_size_of_an_element(kind: str) -> None:
    layer, samples = SAMPLES[kind]
    shapes = [(3, *sample) for sample in samples]
    for phase in layer.phases(*shapes):
        half, full = layer.cost(phase, *shapes, itemsize=2), layer.cost(phase, *shapes, itemsize=4)
        assert (2 * half.bytes, half.flops) == (full.bytes, full.flops)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (Convolution, {"out_channels": 3, "kernel": 1, "groups": 2}, "not a multiple of groups 2"),
        (Convolution, {"out_channels": 3, "kernel": (3, 3, 3)}, "expected 2"),
        (Convolution, {"out_channels": 3, "kernel": 3, "output_padding": 1}, "needs transposed"),
        (Convolution, {"out_channels": 0, "kernel": 3}, "out_channels = 0: expected at least 1"),
        (Pooling, {"kernel": 2, "padding": 2}, "must be smaller than the window"),
        (Dropout, {"probability": 1.0}, "below 1"),
        (BatchNorm, {"momentum": 1.5}, "momentum = 1.5: expected at most 1"),
        (Linear, {"out_features": 3, "units": 3}, "key 'units' is unknown"),
    ],
)
def test_impossible_settings_are_rejected(kind: type[Layer], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        kind(name="x", **settings)

"""Modules built from descriptions: shapes as described, results as defined."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import lamina.spec.layers.activation as activations
from lamina.build import SpecModule, conversion, copied, from_network, stored_precision, to_precision, trace
from lamina.build.modules import WindowPool, WithinChannelNorm
from lamina.spec import Input, Network
from lamina.spec import layers as spec


def network(*layers: spec.Layer, shape: tuple[int, ...] = (4, 9, 9)) -> Network:
    return Network(name="test", inputs=(Input(shape=shape),), layers=layers)


EVERY_KIND = [
    spec.Convolution(name="a", inputs=("input",), out_channels=6, kernel=3, groups=2, dilation=2, bias=True),
    spec.Convolution(
        name="a", inputs=("input",), out_channels=6, kernel=3, stride=2, transposed=True, output_padding=1
    ),
    spec.Convolution(name="a", inputs=("input",), out_channels=6, kernel=3, padding=1, flip=True),
    spec.Convolution(name="a", inputs=("input",), out_channels=6, kernel=3, padding=1, algorithm="winograd"),
    spec.Linear(name="a", inputs=("input",), out_features=5, spatial=True),
    spec.Linear(name="a", inputs=("input",), out_features=5, bias=True),
    spec.Pooling(name="a", inputs=("input",), kernel=3, stride=2, rounding="caffe"),
    spec.Pooling(name="a", inputs=("input",), kernel=2, stride=4, rounding="caffe", mode="average"),
    spec.Pooling(name="a", inputs=("input",), kernel=3, stride=2, padding=2, mode="average_excluding_padding"),
    spec.AdaptivePooling(name="a", inputs=("input",), size=3),
    *(spec.Activation(name="a", inputs=("input",), function=f) for f in activations.OPERATIONS),
    spec.Dropout(name="a", inputs=("input",), probability=0.3),
    spec.Bypass(name="a", inputs=("input",)),
    spec.BatchNorm(name="a", inputs=("input",)),
    spec.BatchNorm(name="a", inputs=("input",), mode="per_activation"),
    spec.LayerNorm(name="a", inputs=("input",), axes=2),
    spec.LocalResponseNorm(name="a", inputs=("input",)),
    spec.LocalResponseNorm(name="a", inputs=("input",), mode="within_channel", size=3),
    *(
        spec.Softmax(name="a", inputs=("input",), algorithm=algorithm, mode=mode)
        for algorithm in ("accurate", "fast", "log")
        for mode in ("channel", "instance", "last")
    ),
    spec.Concat(name="a", inputs=("input", "input")),
    spec.Add(name="a", inputs=("input", "input")),
    spec.Multiply(name="a", inputs=("input", "input")),
    spec.Flatten(name="a", inputs=("input",)),
    spec.Transpose(name="a", inputs=("input",)),
]


@pytest.mark.parametrize("layer", EVERY_KIND, ids=lambda layer: f"{layer.kind}")
def test_module_has_the_described_shape_and_parameters(layer: spec.Layer) -> None:
    described = network(layer)
    (resolved,) = described.resolve(2)
    module = SpecModule(described)
    y = module(torch.randn(2, 4, 9, 9))
    assert tuple(y.shape) == resolved.output
    assert sum(p.numel() for p in module.parameters()) == resolved.parameters


@pytest.mark.parametrize("layer", EVERY_KIND, ids=lambda layer: f"{layer.kind}")
def test_tracing_a_built_module_gives_its_description_back(layer: spec.Layer) -> None:
    module = SpecModule(network(layer))
    (found,) = trace(module, torch.randn(2, 4, 9, 9)).layers
    assert found.layer.model_dump() == layer.model_dump()


def test_sequence_kinds() -> None:
    tokens = Network(
        name="sequence",
        inputs=(Input(shape=(7,), content="indices", vocabulary=11),),
        layers=(
            spec.Embedding(name="table", inputs=("input",), vocabulary=11, dim=12),
            spec.LSTM(name="lstm", inputs=("table",), hidden=6, bidirectional=True),
            spec.Linear(name="qkv", inputs=("lstm",), out_features=36),
            spec.Attention(name="attention", inputs=("qkv",), heads=3, causal=True),
        ),
    )
    module = SpecModule(tokens)
    y = module(torch.randint(0, 11, (2, 7)))
    assert tuple(y.shape) == tokens.resolve(2)[-1].output == (2, 7, 12)


@given(
    size=st.integers(3, 12),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 5),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_window_pool_equals_a_plain_loop(size: int, kernel: int, stride: int, data: st.DataObject) -> None:
    padding = data.draw(st.integers(0, kernel - 1))
    mode = data.draw(st.sampled_from(["max", "average", "average_excluding_padding"]))
    layer = spec.Pooling(
        name="pool",
        inputs=("input",),
        kernel=kernel,
        stride=stride,
        padding=padding,
        mode=mode,
        rounding="caffe",
    )
    x = torch.randn(1, 2, size, size, dtype=torch.float64)
    try:
        expected_shape = layer.output(tuple(x.shape))
    except ValueError:
        return
    y = WindowPool(layer)(x)
    assert tuple(y.shape) == expected_shape
    for i in range(y.shape[2]):
        for j in range(y.shape[3]):
            top, left = i * stride - padding, j * stride - padding
            window = x[0, :, max(top, 0) : max(top + kernel, 0), max(left, 0) : max(left + kernel, 0)]
            if window.numel() == 0:
                continue  # a window wholly outside: DNNMark has them where only one padding is positive
            match mode:
                case "max":
                    expected = window.amax((1, 2))
                case "average":
                    expected = window.sum((1, 2)) / kernel**2
                case _:
                    expected = window.mean((1, 2))
            torch.testing.assert_close(y[0, :, i, j], expected)


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 5, 7)], ids=str)
@pytest.mark.parametrize("size", [1, 3, 9])
def test_within_channel_normalization_is_its_definition(size: int, shape: tuple[int, ...]) -> None:
    layer = spec.LocalResponseNorm(name="n", mode="within_channel", size=size, alpha=0.3, beta=0.7, k=1.5)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    module = WithinChannelNorm(layer)
    expected = torch.empty_like(x)
    for position in itertools.product(*map(range, shape[2:])):
        window = tuple(slice(max(at - size // 2, 0), at + size // 2 + 1) for at in position)
        squares = x[(..., *window)].square().flatten(2).sum(2)
        here = x[(..., *position)]
        expected[(..., *position)] = here / (1.5 + 0.3 / size ** len(position) * squares) ** 0.7
    torch.testing.assert_close(module(x), expected)
    gy = torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, gy, retain_graph=True)[0] for y in (module(x), expected)))
    assert torch.autograd.gradcheck(module, x[:1, :1])


def test_spatial_linear_is_a_matrix_product_over_everything() -> None:
    layer = spec.Linear(name="fc", inputs=("input",), out_features=5, spatial=True)
    module = SpecModule(network(layer))
    x = torch.randn(3, 4, 9, 9)
    weight = next(module.parameters())
    torch.testing.assert_close(module(x)[:, :, 0, 0], F.linear(x.flatten(1), weight))


def test_flipped_kernel_is_true_convolution() -> None:
    layer = spec.Convolution(name="c", inputs=("input",), out_channels=6, kernel=3, flip=True)
    module = SpecModule(network(layer))
    x, weight = torch.randn(1, 4, 9, 9), next(module.parameters())
    torch.testing.assert_close(module(x), F.conv2d(x, weight.flip(2, 3)))


def test_target_fills_images_with_data_and_feature_maps_with_random_values() -> None:
    from lamina.build.data import load

    images = from_network(network(spec.Bypass(name="a", inputs=("input",)), shape=(3, 20, 20)))
    (x,), labels, remarks = images.example(5, load("fashion-mnist"), "bf16", torch.device("cpu"), "nhwc", 0)
    assert x.shape == (5, 3, 20, 20) and x.dtype == torch.bfloat16 and labels.shape == (5,) and not remarks
    assert x.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(x[:, 0], x[:, 1])  # a grey image in three channels

    maps = from_network(network(spec.Bypass(name="a", inputs=("input",)), shape=(32, 5, 5)))
    (x,), _, remarks = maps.example(5, load("fashion-mnist"), "fp32", torch.device("cpu"), "nchw", 0)
    assert x.std() > 0.5 and "random values" in remarks[0]


def test_networks_of_mixed_dtypes_keep_those_that_are_not_float32() -> None:
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.float64))
    for precision, first in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        moved = to_precision(copy.deepcopy(mixed), precision, torch.device("cpu"), "nchw")
        assert [layer.weight.dtype for layer in moved] == [first, torch.float64]
    half = to_precision(nn.Linear(2, 2, dtype=torch.bfloat16), "fp32", torch.device("cpu"), "nchw")
    assert half.weight.dtype == torch.float32
    half = nn.Linear(2, 2, dtype=torch.bfloat16)
    half.register_buffer("scale", torch.ones(2))  # parameters of one dtype do not mix
    moved = to_precision(half, "fp16", torch.device("cpu"), "nchw")
    assert {one.dtype for one in moved.state_dict().values()} == {torch.float16}


def test_what_is_converted_is_told() -> None:
    double, quarter = nn.Linear(2, 2, dtype=torch.float64), nn.Linear(2, 2).to(torch.float8_e5m2)
    assert conversion(double, "tf32") == "its weights are float64 and are converted to tf32"
    assert conversion(quarter, "fp32") == "its weights are float8_e5m2 and are converted to fp32"
    mixed = nn.Sequential(nn.Linear(2, 2), double)
    assert not any((conversion(double, "fp64"), conversion(nn.Linear(2, 2), "bf16"), conversion(mixed, "bf16")))
    assert stored_precision(double) == "fp64" and stored_precision(nn.Linear(2, 2)) == "fp32"
    assert stored_precision(quarter) is stored_precision(mixed) is stored_precision(nn.ReLU()) is None


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_complex_parameters_keep_their_imaginary_parts(precision: str) -> None:
    module = nn.Linear(2, 2)
    module.filter = nn.Parameter(torch.tensor([1 + 2j]))
    moved = to_precision(module, precision, torch.device("cpu"), "nchw")
    assert moved.filter.dtype == torch.complex64 and moved.filter.item() == 1 + 2j
    assert moved.weight.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]


def test_lazy_parameters_keep_waiting_for_their_shape() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(5))
    moved = to_precision(module, "fp32", torch.device("cpu"), "nhwc")
    assert moved[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert moved(torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)).shape == (2, 5)


def test_a_copy_has_weights_of_its_own_in_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Sequential(nn.LSTM(4, 4), nn.GRU(4, 4))
    flattened: list[nn.Module] = []
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", lambda layer: flattened.append(layer))
    twin = copied(network)
    assert flattened[-2:] == [*twin] and [*twin] != [*network]
    for one, other in zip(network.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other) and one.data_ptr() != other.data_ptr()


@pytest.mark.gpu
def test_weights_of_a_copied_lstm_are_in_one_chunk() -> None:
    twin = copied(nn.LSTM(8, 8, num_layers=2, device="cuda"))
    assert len({weight.untyped_storage().data_ptr() for weight in twin.parameters()}) == 1

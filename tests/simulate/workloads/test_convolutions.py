import numpy as np
import pytest
import torch

from lamina import build
from lamina.build.models import ZOO, create
from lamina.errors import UsageError
from lamina.simulate.workloads import ConvolutionGemm, convolutions, pattern
from lamina.spec import Input, Network, Phase
from lamina.spec.geometry import Conv2dGeometry
from lamina.spec.layers.convolution import Convolution

# Counted by hand from the papers' layer tables: m, k, n of each convolution.
ALEXNET_128 = [
    (64, 363, 387200), (192, 1600, 93312), (384, 1728, 21632), (256, 3456, 21632), (256, 2304, 21632),
]  # fmt: skip
ALEXNET_GROUPS_128 = [
    (96, 363, 387200, 1), (128, 1200, 93312, 2), (384, 2304, 21632, 1), (192, 1728, 21632, 2), (128, 1728, 21632, 2),
]  # fmt: skip
VGG16_64 = [
    (64, 27, 3211264), (64, 576, 3211264), (128, 576, 802816), (128, 1152, 802816), (256, 1152, 200704),
    (256, 2304, 200704), (256, 2304, 200704), (512, 2304, 50176), (512, 4608, 50176), (512, 4608, 50176),
    (512, 4608, 12544), (512, 4608, 12544), (512, 4608, 12544),
]  # fmt: skip
BLOCK = [(512, 4608, 3136), (512, 4608, 3136)]
RESNET18_64 = [
    (64, 147, 802816), *[(64, 576, 200704)] * 4,
    (128, 576, 50176), (128, 1152, 50176), (128, 64, 50176), *[(128, 1152, 50176)] * 2,
    (256, 1152, 12544), (256, 2304, 12544), (256, 128, 12544), *[(256, 2304, 12544)] * 2,
    (512, 2304, 3136), (512, 4608, 3136), (512, 256, 3136), *BLOCK,
]  # fmt: skip
VGG11_CIFAR = [  # a sample: 32 x 32, halved by each of five poolings
    (64, 27, 1024), (128, 576, 256), (256, 1152, 64), (256, 2304, 64),
    (512, 2304, 16), (512, 4608, 16), (512, 4608, 4), (512, 4608, 4),
]  # fmt: skip
RESNET10_CIFAR = [
    (64, 27, 1024), (64, 576, 1024), (64, 576, 1024), (128, 576, 256), (128, 1152, 256), (128, 64, 256),
    (256, 1152, 64), (256, 2304, 64), (256, 128, 64), (512, 2304, 16), (512, 4608, 16), (512, 256, 16),
]  # fmt: skip


def of(name: str, batch: int) -> tuple[ConvolutionGemm, ...]:
    return convolutions(build.from_zoo(ZOO[name]).resolve(batch))


@pytest.mark.parametrize(
    ("name", "batch", "dimensions"),
    [("alexnet", 128, ALEXNET_128), ("vgg16", 64, VGG16_64), ("resnet18", 64, RESNET18_64)],
)
def test_layers_have_their_published_dimensions(name: str, batch: int, dimensions: list[tuple[int, int, int]]) -> None:
    assert sorted((each.m, each.k, each.n) for each in of(name, batch)) == sorted(dimensions)


@pytest.mark.parametrize(("name", "dimensions"), [("vgg11_cifar", VGG11_CIFAR), ("resnet10_cifar", RESNET10_CIFAR)])
@pytest.mark.parametrize("batch", [1, 128, 256])
def test_small_images_give_small_products(name: str, batch: int, dimensions: list[tuple[int, int, int]]) -> None:
    found = sorted((each.m, each.k, each.n) for each in of(name, batch))
    assert found == sorted((m, k, n * batch) for m, k, n in dimensions)


def test_groups_are_products_of_their_own() -> None:
    with torch.device("meta"):
        traced = build.trace(create("alexnet2012", groups=2), torch.empty(128, 3, 227, 227))
    assert [(each.m, each.k, each.n, each.groups) for each in convolutions(traced.layers)] == ALEXNET_GROUPS_128


@pytest.mark.parametrize(
    ("name", "batch", "giga"), [("alexnet", 128, 167.8), ("vgg16", 64, 1964.4), ("resnet18", 64, 232.1)]
)
def test_operations_add_up(name: str, batch: int, giga: float) -> None:
    assert sum(each.operations for each in of(name, batch)) / 1e9 == pytest.approx(giga, abs=0.05)


def test_shares_inside_of_alexnet() -> None:
    assert [round(each.inside, 3) for each in of("alexnet", 128)] == [0.990, 0.913, 0.900, 0.900, 0.900]


def test_bytes_and_tiles_of_a_first_layer() -> None:
    first = of("alexnet", 128)[0]
    assert first.map == (128, 3, 224, 224)
    assert first.bytes == (4 * 64 * 363, 4 * 363 * 387200, 4 * 64 * 387200)
    assert first.padded(32) == (64, 387200, 384)


def network(layer: Convolution, shape: tuple[int, ...]) -> Network:
    return Network(name="one", inputs=(Input(shape=shape),), layers=(layer,))


def conv(**settings: object) -> Convolution:
    return Convolution(**{"name": "c", "inputs": ("input",), "out_channels": 8, "kernel": 3, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (conv(), (4, 9, 7)),
        (conv(kernel=(3, 5), stride=(2, 1), padding=(1, 2), dilation=(2, 1), groups=2), (4, 9, 7)),
        (conv(rank=1, padding=1, stride=2), (4, 11)),
        (conv(transposed=True, stride=2), (4, 5, 5)),
        (conv(transposed=True, groups=4), (4, 5, 5)),
    ],
)
def test_operations_are_those_of_the_layer(layer: Convolution, shape: tuple[int, ...]) -> None:
    (resolved,) = network(layer, shape).resolve(3)
    (gemm,) = convolutions([resolved])
    assert gemm.operations == resolved.cost(Phase.FORWARD).flops
    assert gemm.columns(np.ones(gemm.map, dtype=np.bool_)).shape == (gemm.k, gemm.n)


@pytest.mark.parametrize("groups", [1, 2])
def test_columns_multiply_to_the_convolution(groups: int) -> None:
    """With weights of one, each place counts the values of its window that are not zero."""
    layer = conv(kernel=(3, 2), stride=2, padding=1, groups=groups, out_channels=2)
    (gemm,) = convolutions(network(layer, (4, 6, 5)).resolve(2))
    mask = pattern("iid", gemm.map, 0.4, 1)
    x = torch.from_numpy(mask).double()
    y = torch.nn.functional.conv2d(x, torch.ones(2, 4 // groups, 3, 2).double(), stride=2, padding=1, groups=groups)
    for group in range(groups):
        counted = gemm.columns(mask, group).sum(axis=0)
        np.testing.assert_array_equal(counted, y[:, group].numpy().ravel())


def test_what_is_not_there_is_rejected() -> None:
    (gemm,) = convolutions(network(conv(), (4, 6, 5)).resolve(2))
    assert gemm.window == Conv2dGeometry.of((3, 3))
    mask = np.ones(gemm.map, dtype=np.bool_)
    with pytest.raises(UsageError, match="a group from 0 to 0, got 1"):
        gemm.columns(mask, 1)
    with pytest.raises(UsageError, match=r"c: expected a mask of \[2, 4, 6, 5\]"):
        gemm.columns(mask[:1])

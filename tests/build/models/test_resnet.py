import pytest
import torch
from torch import nn

from lamina.build.models import create


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet10", 5_418_792),
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
    ],
)
def test_parameters_are_the_published_ones(name: str, expected: int) -> None:
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in create(name).parameters()) == expected


def norm(name: str) -> list[str]:
    return [f"{name}.{kind}" for kind in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]


def test_resnet50_names_are_torchvisions() -> None:
    with torch.device("meta"):
        names = list(create("resnet50").state_dict())
    block = [name for at in (1, 2, 3) for name in (f"layer1.0.conv{at}.weight", *norm(f"layer1.0.bn{at}"))]
    downsample = ["layer1.0.downsample.0.weight", *norm("layer1.0.downsample.1")]
    assert names[:30] == ["conv1.weight", *norm("bn1"), *block, *downsample]
    assert names[-2:] == ["fc.weight", "fc.bias"]
    assert len(names) == 320


def test_bottlenecks_stride_in_the_3x3() -> None:
    with torch.device("meta"):
        block = create("resnet50").get_submodule("layer2.0")
    assert [conv.stride for conv in (block.conv1, block.conv2, block.conv3)] == [(1, 1), (2, 2), (1, 1)]


def test_the_small_stem_keeps_the_image_whole() -> None:
    with torch.device("meta"):
        model = create("resnet10_cifar")
        sizes = []
        for stage in ("layer1", "layer4"):
            model.get_submodule(stage).register_forward_hook(lambda m, i, out: sizes.append(tuple(out.shape[2:])))
        model(torch.empty(2, 3, 32, 32))
    assert sizes == [(32, 32), (4, 4)]


def test_a_block_adds_its_input() -> None:
    """With the last norm scaled to zero only the shortcut is left."""
    model = create("resnet10_cifar").eval()
    block = model.get_submodule("layer1.0")
    assert isinstance(block.bn2, nn.BatchNorm2d)
    nn.init.zeros_(block.bn2.weight)
    x = torch.randn(2, 64, 8, 8)
    torch.testing.assert_close(block(x), x.relu())

import pytest
import torch

from lamina.build.models import create


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("cifarnet", [(32, 3, 5, 5), (32, 32, 5, 5), (64, 32, 5, 5), (10, 1024)]),
        ("cifarnet64", [(64, 3, 5, 5), (64, 64, 5, 5), (384, 4096), (192, 384), (10, 192)]),
    ],
)
def test_weights_have_the_published_shapes(name: str, shapes: list[tuple[int, ...]]) -> None:
    assert [tuple(p.shape) for p in create(name).parameters() if p.ndim > 1] == shapes


def test_pooling_keeps_the_last_window_as_caffe_does() -> None:
    features = create("cifarnet").features
    sizes, x = [], torch.randn(1, 3, 32, 32)
    for module in features:
        x = module(x)
        if isinstance(module, torch.nn.MaxPool2d | torch.nn.AvgPool2d):
            sizes.append(x.shape[2])
    assert sizes == [16, 8, 4]

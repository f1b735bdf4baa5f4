import pytest
import torch

from lamina.build.models import create


@pytest.mark.parametrize(
    ("name", "expected"),
    [("vgg11", 132_863_336), ("vgg13", 133_047_848), ("vgg16", 138_357_544), ("vgg19", 143_667_240)],
)
def test_parameters_are_torchvisions(name: str, expected: int) -> None:
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in create(name).parameters()) == expected


def test_vgg16_has_the_published_weights() -> None:
    with torch.device("meta"):
        weights = [parameter.numel() for parameter in create("vgg16").parameters() if parameter.ndim > 1]
    assert (len(weights), sum(weights)) == (16, 138_344_128)


def test_vgg16_names_are_torchvisions() -> None:
    with torch.device("meta"):
        names = list(create("vgg16").state_dict())
    convolutions = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)
    assert names[::2] == [f"features.{at}.weight" for at in convolutions] + [
        f"classifier.{at}.weight" for at in (0, 3, 6)
    ]


def test_vgg11_on_small_images_has_spartans_fifth_convolution() -> None:
    with torch.device("meta"):
        model = create("vgg11_cifar")
        fifth = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)][4]
    assert (fifth.in_channels, fifth.out_channels) == (256, 512)

import pytest
import torch
from torch import Tensor, nn

from lamina.build.models.alexnet import AlexNet2012, alexnet, alexnet2012


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def weights(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.ndim > 1)


def test_alexnet_is_torchvisions() -> None:
    with torch.device("meta"):
        model = alexnet()
    assert parameters(model) == 61_100_840
    assert list(model.state_dict()) == [
        f"{layer}.{kind}"
        for layer in (
            *(f"features.{at}" for at in (0, 3, 6, 8, 10)),
            "classifier.1",
            "classifier.4",
            "classifier.6",
        )
        for kind in ("weight", "bias")
    ]
    assert [name for name, _ in model.named_children()] == ["features", "avgpool", "classifier"]


@pytest.mark.parametrize(("groups", "expected"), [(1, 62_367_776), (2, 60_954_656)])
def test_alexnet2012_has_the_published_weights(groups: int, expected: int) -> None:
    with torch.device("meta"):
        assert weights(alexnet2012(groups=groups)) == expected


def test_the_first_convolution_fits_227_pixels_exactly() -> None:
    with torch.device("meta"):
        model = AlexNet2012()
        assert model.features[:1](torch.empty(1, 3, 227, 227)).shape == (1, 96, 55, 55)
        assert model.features(torch.empty(1, 3, 227, 227)).shape == (1, 256, 6, 6)


def test_response_normalisation_is_the_paper_s() -> None:
    """Krizhevsky 2012, 3.3: the sum over five neighbouring channels, cut off at the first and last."""
    x = torch.randn(2, 7, 3, 3) * 100
    expected = torch.empty_like(x)
    for channel in range(7):
        near: Tensor = x[:, max(0, channel - 2) : channel + 3]
        expected[:, channel] = x[:, channel] / (2 + 1e-4 * near.square().sum(1)) ** 0.75
    norm = AlexNet2012(num_classes=1).features[2]
    torch.testing.assert_close(norm(x), expected)

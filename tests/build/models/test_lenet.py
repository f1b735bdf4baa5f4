import torch

from lamina.build.models import create


def test_layers_have_the_classic_sizes() -> None:
    shapes = [tuple(p.shape) for p in create("lenet5").parameters() if p.ndim > 1]
    assert shapes == [(6, 1, 5, 5), (16, 6, 5, 5), (120, 400), (84, 120), (10, 84)]
    assert sum(p.numel() for p in create("lenet5").parameters()) == 61_706


def test_28_pixels_padded_are_32_unpadded() -> None:
    model = create("lenet5")
    convolution = model.features[0]
    x = torch.randn(2, 1, 28, 28)
    padded = torch.nn.functional.conv2d(torch.nn.functional.pad(x, (2,) * 4), convolution.weight, convolution.bias)
    torch.testing.assert_close(convolution(x), padded)

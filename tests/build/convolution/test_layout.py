import torch

from lamina.build.convolution.layout import is_channels_last


def test_channels_last():
    image = torch.zeros(2, 3, 4, 5)
    assert not is_channels_last(image)
    assert is_channels_last(image.contiguous(memory_format=torch.channels_last))
    assert not is_channels_last(image[..., ::2])
    assert not is_channels_last(torch.zeros(2, 3, 4).transpose(1, 2))


def test_an_image_that_could_be_either_is_not():
    assert not is_channels_last(torch.zeros(2, 1, 4, 5).contiguous(memory_format=torch.channels_last))
    assert not is_channels_last(torch.zeros(2, 3, 1, 1).contiguous(memory_format=torch.channels_last))

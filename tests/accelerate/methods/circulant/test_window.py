"""Windows against PyTorch's own output sizes."""

import torch
import torch.nn.functional as F

from lamina.accelerate.methods.circulant.window import Window


def test_sizes_are_those_of_a_convolution() -> None:
    window = Window(2, 11, 9, 3, 2, 2, 3, 1, 2, 2, 1, 1)
    y = F.conv2d(torch.zeros(2, 1, 11, 9), torch.zeros(1, 1, 3, 2), None, (2, 3), (1, 2), (2, 1))
    assert (window.out_height, window.out_width) == y.shape[2:]
    assert (window.rows_in, window.rows_out, window.taps) == (2 * 99, y.numel(), 6)


def test_packing_keeps_everything() -> None:
    window = Window(*range(2, 14))
    assert Window.unpack(window.pack()) == window


def test_only_a_single_unmoved_tap_is_pointwise() -> None:
    assert Window(3).pointwise
    assert Window(3, 4, 4, groups=2).pointwise
    assert not Window(3, 4, 4, stride_width=2).pointwise
    assert not Window(3, 4, 4, padding_height=1).pointwise
    assert not Window(3, 4, 4, kernel_width=2).pointwise

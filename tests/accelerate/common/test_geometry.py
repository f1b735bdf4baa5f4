"""A convolution with its input against PyTorch's own output sizes."""

import torch
import torch.nn.functional as F

from lamina.accelerate.common.geometry import Conv2dProblem


def test_sizes_are_those_of_a_convolution() -> None:
    conv = Conv2dProblem(2, 11, 9, 3, 2, 2, 3, 1, 2, 2, 1, 1)
    y = F.conv2d(torch.zeros(2, 1, 11, 9), torch.zeros(1, 1, 3, 2), None, (2, 3), (1, 2), (2, 1))
    assert (conv.out_height, conv.out_width) == y.shape[2:]
    assert (conv.rows_in, conv.rows_out, conv.taps) == (2 * 99, y.numel(), 6)


def test_packing_keeps_all_fields() -> None:
    conv = Conv2dProblem(*range(2, 14))
    assert conv.pack() == [*range(2, 14)] and Conv2dProblem.unpack(conv.pack()) == conv
    names = ("batch", "height", "width", "kernel_height", "dilation_width", "groups")
    assert [getattr(conv, name) for name in names] == [2, 3, 4, 5, 12, 13]


def test_only_a_1x1_convolution_of_each_pixel_is_pointwise() -> None:
    assert Conv2dProblem(3).pointwise and Conv2dProblem(3, 4, 4, groups=2).pointwise
    for field in ("stride_width", "padding_height", "kernel_width"):
        assert not Conv2dProblem(3, 4, 4, **{field: 2}).pointwise

import pytest
import torch

from lamina.build.convolution.geometry import Geometry
from lamina.errors import UsageError


@pytest.mark.parametrize(
    ("geometry", "size", "kernel"),
    [
        (Geometry((4, 4), (0, 0), (1, 1)), (227, 227), (11, 11)),
        (Geometry((2, 3), (1, 0), (2, 1)), (14, 9), (3, 5)),
        (Geometry((3,), (4,), (2,)), (17,), (5,)),
        (Geometry((2, 1), (1, 2), (1, 2), transposed=True, output_padding=(1, 0)), (7, 6), (3, 3)),
    ],
)
def test_output_size_is_what_torch_makes(geometry, size, kernel):
    x, w = torch.zeros(1, 1, *size), torch.zeros(1, 1, *kernel)
    g = geometry
    y = torch.convolution(x, w, None, g.stride, g.padding, g.dilation, g.transposed, g.output_padding, 1)
    assert g.output_size(size, kernel) == tuple(y.shape[2:])


def test_output_padding_defaults_to_zero_on_each_axis():
    assert Geometry((1,), (0,), (1,)).output_padding == (0,)
    assert Geometry((1, 1), (0, 0), (1, 1)).output_padding == (0, 0)
    assert Geometry((1, 1), (0, 0), (1, 1), output_padding=(0, 0)) == Geometry((1, 1), (0, 0), (1, 1))


def test_extent_counts_dilation():
    assert Geometry((1, 1), (0, 0), (3, 1)).extent((3, 5)) == (7, 5)


def test_a_sequence_is_an_image_of_height_one():
    plane = Geometry((2,), (3,), (4,), groups=5).as_plane()
    assert plane == Geometry((1, 2), (0, 3), (1, 4), groups=5)
    assert plane.as_plane() is plane


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((1, 1), (0,), (1, 1)), "one value per axis"),
        (((1, 1, 1), (0, 0, 0), (1, 1, 1)), "one value per axis"),
        (((0,), (0,), (1,)), "stride, dilation and groups >= 1"),
        (((1,), (-1,), (1,)), "paddings >= 0"),
        (((1,), (0,), (1,), 0), "groups >= 1"),
        (((1,), (0,), (1,), 1, False, (1,)), "output_padding needs transposed"),
    ],
)
def test_invalid_geometries_are_rejected(arguments, message):
    with pytest.raises(UsageError, match=message):
        Geometry(*arguments)


def test_a_kernel_larger_than_the_padded_input_is_rejected():
    with pytest.raises(UsageError, match="at least as large as the kernel"):
        Geometry((1, 1), (1, 1), (1, 2)).output_size((8, 2), (3, 3))

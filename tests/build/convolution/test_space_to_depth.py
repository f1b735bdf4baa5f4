"""Blocks of pixels as channels: first layers of image classifiers."""

import pytest
import torch
from torch import nn

from lamina import build
from lamina.build.convolution import Geometry, PhaseAlgorithms, convolve, space_to_depth
from lamina.build.convolution.layout import is_channels_last
from lamina.spec import Method

CASES = [
    ((2, 3, 39, 39), (16, 3, 11, 11), Geometry((4, 4), (2, 2), (1, 1))),  # the first layers of AlexNet,
    ((2, 3, 32, 32), (16, 3, 7, 7), Geometry((2, 2), (3, 3), (1, 1))),  # of ResNet,
    ((2, 3, 16, 16), (8, 3, 3, 3), Geometry((1, 1), (1, 1), (1, 1))),  # of VGG,
    ((2, 3, 32, 32), (8, 3, 16, 16), Geometry((16, 16), (0, 0), (1, 1))),  # of ViT,
    ((2, 1, 66), (8, 1, 10), Geometry((5,), (0,), (1,))),  # and of wav2vec
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_rounding_is_that_of_the_library(case, dtype, within):
    # Of this case the library sums the input gradient in another order, with an element of three times the error.
    within("space_to_depth", case, dtype, worst=4 if (case, dtype) == (CASES[1], torch.float32) else 2)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_channels_fill_vectors(case):
    x_shape, w_shape, g = case
    blocks = space_to_depth._Blocks.of(x_shape, w_shape, g)
    _, channels, *_ = blocks.image_shape(2)
    assert channels % space_to_depth.VECTOR == 0
    assert blocks.image(torch.ones(x_shape)).shape == blocks.image_shape(2)
    assert blocks.filters(torch.ones(w_shape)).shape == blocks.filters_shape(w_shape[0])
    assert blocks.filters(torch.ones(w_shape)).sum() == torch.ones(w_shape).sum()


def test_the_layout_is_kept(sample):
    shapes = CASES[0]
    x, w, gy = (one.contiguous(memory_format=torch.channels_last) for one in sample(*shapes, torch.float32))
    assert is_channels_last(space_to_depth.forward(x, w, shapes[2]))
    assert is_channels_last(space_to_depth.backward_data(gy, w, shapes[2], x.shape))
    assert space_to_depth.forward(x.contiguous(), w.contiguous(), shapes[2]).is_contiguous()


def test_autograd_gives_the_gradients_of_the_phases(sample):
    for case in CASES:
        x, w, gy = sample(*case)
        x, w = x.requires_grad_(), w.requires_grad_()
        y = convolve(x, w, case[2], PhaseAlgorithms(*["space_to_depth"] * 3))
        gx, gw = torch.autograd.grad(y, [x, w], gy)
        with torch.no_grad():
            torch.testing.assert_close(space_to_depth.backward_data(gy, w, case[2], x.shape), gx)
            torch.testing.assert_close(space_to_depth.backward_weight(gy, x, case[2], w.shape), gw)


def test_a_compiled_layer_is_one_graph():
    dense = nn.Conv2d(3, 8, 7, 2, 3)
    layer = build.by_algorithm(Method.parse("dense:space_to_depth"), dense)
    x = torch.randn(2, 3, 20, 20)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), dense(x))
    compiled(x).sum().backward()
    expected = torch.autograd.grad(dense(x).sum(), list(dense.parameters()))
    torch.testing.assert_close([one.grad for one in layer.parameters()], list(expected))


@pytest.mark.parametrize(
    ("geometry", "w_shape", "reason"),
    [
        (Geometry((2, 2), (0, 0), (1, 1), transposed=True), (3, 4, 3, 3), "transposed"),
        (Geometry((2, 2), (0, 0), (1, 1), groups=2), (4, 2, 3, 3), "groups or dilation"),
        (Geometry((2, 2), (0, 0), (2, 2)), (4, 3, 3, 3), "groups or dilation"),
        (Geometry((2, 2), (0, 0), (1, 1)), (4, 64, 3, 3), "at most 16 input channels, got 64"),
    ],
)
def test_what_it_is_not_for(geometry, w_shape, reason):
    assert reason in (space_to_depth.refusal(geometry, w_shape) or "")


def test_autocast_is_the_librarys():
    dense = nn.Conv2d(3, 8, 7, 2, 3)
    layer = build.by_algorithm(Method.parse("dense:space_to_depth"), dense)
    x = torch.randn(2, 3, 20, 20)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = layer(x), dense(x)
    assert ours.dtype == theirs.dtype == torch.bfloat16
    torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)
    ours.float().sum().backward()
    assert layer.weight.grad.dtype == layer.bias.grad.dtype == torch.float32

import pytest
import torch

from lamina.build.convolution import Geometry, direct
from lamina.build.convolution.layout import is_channels_last

CASES = [
    ((2, 16, 14, 14), (16, 16, 3, 3), Geometry((1, 1), (1, 1), (1, 1))),
    ((3, 8, 15, 13), (8, 4, 5, 3), Geometry((3, 2), (2, 0), (2, 1), 2)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_those_of_the_library_bit_for_bit(case, sample):
    x, w, gy = sample(*case, torch.float32)
    x, w, g = x.requires_grad_(), w.requires_grad_(), case[2]
    y = torch.nn.functional.conv2d(x, w, None, g.stride, g.padding, g.dilation, g.groups)
    gx, gw = torch.autograd.grad(y, [x, w], gy)
    with torch.no_grad():
        assert torch.equal(direct.forward(x, w, g), y)
        assert torch.equal(direct.backward_data(gy, w, g, x.shape), gx)
        assert torch.equal(direct.backward_weight(gy, x, g, w.shape), gw)


def test_channels_last_is_kept_in_every_phase(sample):
    x, w, gy = (t.contiguous(memory_format=torch.channels_last) for t in sample(*CASES[0], torch.float32))
    g = CASES[0][2]
    results = (
        direct.forward(x, w, g),
        direct.backward_data(gy, w.contiguous(), g, x.shape),
        direct.backward_weight(gy, x, g, w.shape),
    )
    assert all(is_channels_last(t) for t in results)


@pytest.mark.usefixtures("poisoned_empty")
def test_a_channels_last_gradient_meets_a_plain_weight(definition, sample):
    """The stand-in for the input is never read, or poison would show."""
    x, w, gy = sample(*CASES[0])
    g = CASES[0][2]
    gx = direct.backward_data(gy.contiguous(memory_format=torch.channels_last), w, g, x.shape)
    torch.testing.assert_close(gx, definition(x, w, g, gy).gx, rtol=0, atol=1e-12)


def test_all_shapes_are_supported():
    assert direct.refusal(Geometry((7,), (9,), (5,), 3, True, (2,)), (3, 1, 2)) is None

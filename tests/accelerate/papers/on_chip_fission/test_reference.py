"""The definition of on-chip fission, against that of the formats."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from lamina.accelerate.methods.weight_only.formats import pack, unpack
from lamina.accelerate.papers.on_chip_fission import reference, simt
from lamina.accelerate.papers.on_chip_fission.config import ON_CHIP, OnChip

FORMATS: tuple[OnChip, ...] = tuple(one for one in ON_CHIP if one not in ("float", "deft16q"))


@pytest.mark.parametrize("format", FORMATS)
def test_values_are_those_of_the_format(format: OnChip) -> None:
    x = torch.randn(3, 7) * torch.logspace(-6, 2, 7)
    assert format != "float"
    assert torch.equal(reference.read(x, format), unpack(pack(x, format)))


def test_the_upper_value_of_a_word_keeps_the_bits_of_the_lower_one() -> None:
    x = torch.tensor([[1.0 + 2**-20, -3.0 - 2**-20, 5.0]])
    lower, upper, last = reference.read(x, "deft16q")[0].view(torch.int32).tolist()
    bits = x.view(torch.int32)[0].tolist()
    assert (lower, last) == (bits[0] & reference.UPPER, bits[2] & reference.UPPER)
    assert upper == (bits[1] & reference.UPPER) | (bits[0] >> 16 & 0xFFFF)


@pytest.mark.parametrize("format", ON_CHIP)
def test_the_kernel_reads_the_same_bit_by_bit(format: OnChip, without_gpu: None) -> None:
    x = torch.cat([torch.randn(60) * torch.logspace(-12, 4, 60), torch.tensor([0.0, -0.0, 1.5, 65504.0])])
    ours, kernel = reference.read(x[None], format)[0], simt.through(x, format)
    assert torch.equal(ours.view(torch.int32), kernel.view(torch.int32))


def test_the_gradient_of_rounding_is_that_of_the_identity() -> None:
    x = torch.randn(2, 6, requires_grad=True)
    gradient = torch.randn(2, 6)
    assert torch.equal(torch.autograd.grad(reference.read(x, "e4m3"), x, gradient)[0], gradient)


@pytest.mark.parametrize("format", ["half", "e4m3"])
def test_rounding_and_its_gradient_are_traced_without_values(format: OnChip) -> None:
    def slope(x: Tensor) -> Tensor:
        return torch.autograd.grad(reference.read(x, format).square().sum(), x)[0]

    x = torch.randn(2, 6, requires_grad=True)
    traced = make_fx(slope, tracing_mode="fake")(x)
    assert torch.equal(traced(x), slope(x))


@pytest.mark.parametrize("format", ["half", "deft16q"])
def test_convolutions_multiply_what_is_read_of_each_window(format: OnChip) -> None:
    x, w, b = torch.randn(2, 3, 6, 5), torch.randn(4, 3, 2, 3), torch.randn(4)
    steps = (2, 1), (1, 0), (1, 2)
    y = reference.conv2d(x, w, b, None, format, *steps)
    like = F.conv2d(x, w, b, *steps)
    assert y.shape == like.shape
    torch.testing.assert_close(y, like, rtol=0.02, atol=0.02 if format == "half" else 0.2)
    if format == "half":
        torch.testing.assert_close(y, F.conv2d(x.half().float(), w.half().float(), b, *steps))


def test_pruned_channels_are_not_read() -> None:
    x, w, index = torch.randn(2, 5), torch.randn(3, 2), torch.tensor([4, 1])
    y: Tensor = reference.linear(x, w, None, index, "float")
    assert torch.equal(y, x[:, index] @ w.mT)

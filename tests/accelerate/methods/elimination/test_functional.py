"""Every implementation, forward and backward, against the masked dense layer, over all kept counts and layouts."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lamina.accelerate.methods.elimination.config import By, Impl
from lamina.accelerate.methods.elimination.nn import EliminatedConv1d, EliminatedConv2d, EliminatedLinear

pytest.importorskip("triton")

IMPLS: tuple[Impl, ...] = ("gather", "swap", "pack", "kernel")


def passes(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """The output, and the gradients of the input, the weight and the bias."""
    x = x.detach().requires_grad_()
    y = layer(x)
    generator = torch.Generator().manual_seed(1)
    y.backward(torch.randn(y.shape, generator=generator).to(y.dtype))
    grads = [parameter.grad for parameter in layer.parameters()]
    return [y, *(grad for grad in (x.grad, *grads) if grad is not None)]


def compare(layer: Any, x: Tensor, by: By = "channel") -> None:
    dense = layer.to_dense().double()
    got, (y, dx, dw, *rest) = passes(layer, x), passes(dense, x.double())
    dw = (dw.flatten(1) if by == "tap" else dw).index_select(1, layer.index)
    for mine, wanted in zip(got, (y, dx, dw, *rest), strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("impl", ["auto", *IMPLS])
@pytest.mark.parametrize("kept", [[3], [1], [0], [2, 0]])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (1, 2), (3, 2)])
def test_a_convolution_that_keeps_one_channel(impl: Impl, kept: list[int], kernel: int, stride: int) -> None:
    dense = nn.Conv2d(4, 8, kernel, stride, kernel // 2)
    compare(EliminatedConv2d.from_dense(dense, kept, impl=impl), torch.randn(2, 4, 6, 5))


@pytest.mark.parametrize("impl", ["auto", *IMPLS])
def test_the_gates_of_squeeze_and_excitation_keep_one_channel(impl: Impl) -> None:
    """1x1 images, which are contiguous in both layouts."""
    compare(EliminatedConv2d.from_dense(nn.Conv2d(4, 16, 1), [2], impl=impl), torch.randn(3, 4, 1, 1))
    compare(EliminatedLinear.from_dense(nn.Linear(4, 16), [2], impl=impl), torch.randn(3, 4))
    compare(EliminatedConv1d.from_dense(nn.Conv1d(4, 16, 3, 2, 1), [2], impl=impl), torch.randn(3, 4, 7))


def laid_out(x: Tensor, layout: str) -> Tensor:
    match layout:
        case "nhwc":
            return x.contiguous(memory_format=torch.channels_last)
        case "strided":
            return x.repeat_interleave(2, 3)[..., ::2]
        case "gated":
            return x[:, :, :1, :1].expand(x.shape)
        case "sliced":  # channels of a larger channels-last image, as after a concatenation
            return torch.cat([x, x, x], 1).contiguous(memory_format=torch.channels_last)[:, x.shape[1] : 2 * x.shape[1]]
        case _:
            return x


@settings(max_examples=60, deadline=None)
@given(
    channels=st.integers(2, 9),
    order=st.permutations(range(9)),
    kept=st.integers(1, 9),
    impl=st.sampled_from(IMPLS),
    by=st.sampled_from(["channel", "tap"]),
    layout=st.sampled_from(["nchw", "nhwc", "strided", "gated", "sliced"]),
    window=st.sampled_from([((1, 1), 1, 0, 1), ((1, 1), 2, 0, 1), ((3, 3), 2, 1, 1), ((3, 2), 1, 2, 2)]),
    batch=st.integers(1, 3),
)
def test_hostile_convolutions(
    channels: int, order: list[int], kept: int, impl: Impl, by: By, layout: str, window: Any, batch: int
) -> None:
    kernel, stride, padding, dilation = window
    taps = kernel[0] * kernel[1] if by == "tap" else 1
    index = [entry * taps + tap for tap in range(taps) for entry in order if entry < channels][: kept * taps]
    if impl == "pack" and by == "tap":
        return
    dense = nn.Conv2d(channels, 5, kernel, stride, padding, dilation)
    x = laid_out(torch.randn(batch, channels, 5, 7), layout)
    compare(EliminatedConv2d.from_dense(dense, index, by=by, impl=impl), x, by)

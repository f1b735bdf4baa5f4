"""Max pooling that saves a byte for each window is the library's."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.sparsity.saved import pool, relu, saved_activations

pytestmark = pytest.mark.usefixtures("where_kernels_run", "poisoned_empty")


@pytest.fixture(autouse=True)
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels pool maps that are not on a GPU, too."""
    monkeypatch.setattr(relu, "by_kernel", lambda x: True)
    monkeypatch.setattr(pool, "by_kernel", lambda x: True)


@pytest.mark.parametrize(
    ("size", "arguments"),
    [
        ((9, 10), {"kernel_size": 2}), ((13, 13), {"kernel_size": 3, "stride": 2}),
        ((9, 12), {"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 0)}),
        ((8, 11), {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
        ((7, 7), {"kernel_size": 3, "stride": 1}), ((5, 300), {"kernel_size": 2, "stride": 4, "ceil_mode": True}),
        ((16, 16), {"kernel_size": 16}),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_it_pools_as_the_library_does(dtype: torch.dtype, size: tuple[int, int], arguments: dict[str, Any]) -> None:
    # Few different numbers, so that there are equal ones within a window.
    x = torch.randint(-3, 4, (2, 3, *size)).to(dtype)
    x[0, 0, :2, :3] = torch.tensor([[math.nan, 2.0, math.nan], [-math.inf] * 3])
    x[1, 1] = -math.inf
    windows = pool.windows(x, **arguments)
    assert windows is not None
    results = []
    for function in (lambda x: pool.max_pool(x, windows), lambda x: F.max_pool2d(x, **arguments)):
        leaf = x.clone().requires_grad_()
        y = function(leaf)
        gradient = torch.linspace(-1, 1, y.numel()).view(y.shape).to(dtype)
        (dx,) = torch.autograd.grad(y, leaf, gradient)
        results.append((y.detach(), dx))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0 if dtype != torch.bfloat16 else 2**-7, atol=0, equal_nan=True)


def test_second_derivatives_are_the_librarys() -> None:
    x = torch.randn(2, 3, 9, 9, requires_grad=True)
    results = []
    for function in (lambda x: pool.max_pool(x, pool.windows(x, 3, 2, 1)), lambda x: F.max_pool2d(x, 3, 2, 1)):
        (first,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
        results.append(torch.autograd.grad((first * x).square().sum(), x)[0])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    "arguments",
    [
        {"kernel_size": 2, "dilation": 2}, {"kernel_size": 17}, {"kernel_size": 2, "return_indices": True},
        {"kernel_size": 2, "padding": 2},
    ],
    ids=str,
)  # fmt: skip
def test_what_the_kernel_cannot_do_is_the_librarys(arguments: dict[str, Any]) -> None:
    assert pool.windows(torch.zeros(1, 1, 40, 40), **arguments) is None
    assert pool.windows(torch.zeros(1, 2, 8, 8).contiguous(memory_format=torch.channels_last), 2) is None
    assert pool.windows(torch.zeros(2, 8, 8), 2) is None


def test_a_network_saves_a_byte_for_each_window() -> None:
    x, w = torch.randn(2, 4, 16, 16), torch.randn(4, 4, 3, 3, requires_grad=True)

    def loss(x: Tensor) -> Tensor:
        return F.conv2d(F.max_pool2d(F.relu(F.conv2d(x, w)), 2), w).square().sum()

    saved = saved_activations(least=64)
    with saved:
        ours = loss(x)
    assert saved.held.tensors == {"mask": 1, "narrow": 1, "bitmap": 1}
    assert saved.held.dense_bytes == 2 * 4 * (4 * 14 * 14 + (4 + 8) * 7 * 7)
    torch.testing.assert_close(torch.autograd.grad(ours, w), torch.autograd.grad(loss(x), w), rtol=0, atol=0)

"""Both variants compute a convolution and its weight gradient, compared with float64."""

import pytest
import torch

from lamina.accelerate.papers import l1_bypass
from lamina.accelerate.papers.l1_bypass import reference
from lamina.errors import UsageError

CASES = [
    # images, channels, height, width, filters, kernel, stride, padding
    (2, 3, 23, 19, 5, (11, 7), (4, 3), (0, 0)),
    (3, 5, 9, 9, 70, (3, 3), (1, 1), (1, 1)),
    (1, 2, 6, 8, 3, (5, 5), (1, 1), (2, 2)),
    (2, 17, 4, 5, 65, (1, 1), (1, 1), (0, 0)),
    (1, 1, 3, 3, 1, (3, 3), (2, 2), (1, 0)),
]


def error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    return float((ours.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_they_are_those_of_float64(case: tuple, bypass: bool) -> None:  # type: ignore[type-arg]
    images, channels, height, width, filters, kernel, stride, padding = case
    torch.manual_seed(0)
    x = torch.randn(images, channels, height, width)
    weight = torch.randn(filters, channels, *kernel)
    exact = reference.convolve(x.double(), weight.double(), stride, padding)
    y = l1_bypass.convolve(x, weight, stride, padding, l1_bypass=bypass)
    assert y.shape == exact.shape and error(y, exact) < 1e-6
    gy = torch.randn_like(y)
    exact = reference.weight_gradient(x.double(), gy.double(), kernel, stride, padding)
    ours = l1_bypass.weight_gradient(x, gy, kernel, stride, padding, l1_bypass=bypass)
    assert ours.shape == exact.shape and error(ours, exact) < 1e-6


def test_the_reference_is_autograds() -> None:
    x = torch.randn(2, 3, 9, 9, dtype=torch.float64)
    weight = torch.randn(4, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    y = torch.nn.functional.conv2d(x, weight, stride=2, padding=1)
    gy = torch.randn_like(y)
    (exact,) = torch.autograd.grad(y, weight, gy)
    torch.testing.assert_close(reference.weight_gradient(x, gy, (3, 3), (2, 2), (1, 1)), exact)


def test_what_is_not_supported_is_said() -> None:
    assert l1_bypass.refusal((4, 3, 3, 3), (1, 1), (1, 1), 1) == ""
    assert "groups 2" in l1_bypass.refusal((4, 3, 3, 3), (1, 1), (1, 1), 2)
    assert "1 dimensions" in l1_bypass.refusal((4, 3, 3), (1, 1), (1, 1), 1)
    assert "'same'" in l1_bypass.refusal((4, 3, 3, 3), "same", (1, 1), 1)
    with pytest.raises(UsageError, match="expected float32, got torch.float64"):
        l1_bypass.convolve(torch.ones(1, 1, 3, 3).double(), torch.ones(1, 1, 3, 3), (1, 1), (0, 0))
    with pytest.raises(UsageError, match=r"expected x \(N, C, H, W\)"):
        l1_bypass.convolve(torch.ones(1, 2, 3, 3), torch.ones(1, 1, 3, 3), (1, 1), (0, 0))
    with pytest.raises(UsageError, match="gy"):
        l1_bypass.weight_gradient(torch.ones(1, 2, 3, 3), torch.ones(2, 1, 3, 3), (1, 1), (1, 1), (0, 0))

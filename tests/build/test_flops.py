"""FLOPs of operations without a closed form are those of PyTorch's counter, in every phase."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.build import trace
from lamina.spec import Phase

PRODUCT = 2 * 2 * 8 * 8 * 4  # of two (2, 8, 4) tensors over their last axis


class Calls(nn.Module):
    """Applies a function to two branches."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function, self.inner = function, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.inner(x) * 1.5, x * 2.5)


def flops_of(network: nn.Module, x: Tensor, operation: str) -> list[int]:
    (layer,) = [one for one in trace(network, x).layers if getattr(one.layer, "operation", "") == operation]
    return [layer.cost(phase, 4).flops for phase in Phase]


@pytest.mark.parametrize(
    ("operation", "function"),
    [
        ("einsum", lambda a, b: torch.einsum("bik,bjk->bij", a, b)),
        ("matmul", lambda a, b: a @ b.transpose(1, 2)),
        ("bmm", lambda a, b: torch.bmm(a, b.mT)),
        ("baddbmm", lambda a, b: torch.baddbmm(torch.zeros(1), a, b.mT)),
    ],
)
def test_products_of_two_tensors(operation: str, function: Callable[..., Tensor]) -> None:
    assert flops_of(Calls(function), torch.randn(2, 8, 4), operation) == [PRODUCT, 2 * PRODUCT, 0]


def test_attention_that_has_no_closed_form() -> None:
    network = Calls(lambda a, b: F.scaled_dot_product_attention(a, b, b))
    forward, data, weight = flops_of(network, torch.randn(2, 8, 4), "scaled_dot_product_attention")
    assert forward == 2 * PRODUCT and data >= 2 * forward and weight == 0


def test_a_custom_module_counts_its_weights() -> None:
    class Custom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 5))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.weight).relu()

    x, product = torch.randn(7, 3), 2 * 7 * 3 * 5
    assert flops_of(nn.Sequential(Custom()), x, "Custom") == [product, product, product]


def test_a_convolution_by_function() -> None:
    weight = nn.Parameter(torch.randn(4, 3, 3, 3))

    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.inner = weight, nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(self.inner(x), self.weight)

    taps = 2 * 2 * 6 * 6 * 4 * 3 * 9
    assert flops_of(Functional(), torch.randn(2, 3, 8, 8), "conv2d") == [taps, taps, taps]


@pytest.mark.parametrize(
    ("operation", "function"),
    [
        ("Flatten", nn.Flatten()),
        ("flatten", lambda x: x.flatten(1)),
        ("reshape", lambda x: x.reshape(2, -1)),
        ("contiguous", lambda x: x.contiguous()),
    ],
)
def test_what_only_copies_has_no_flops(operation: str, function: Callable[[Tensor], Tensor]) -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.function = nn.BatchNorm2d(3), function

        def forward(self, x: Tensor) -> Tensor:
            return self.function(self.norm(x)) * 2

    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    (layer,) = [one.layer for one in trace(Flat(), x).layers if getattr(one.layer, "operation", "") == operation]
    assert layer.counted and layer.flops == (0, 0, 0)


def test_what_computes_without_a_formula_is_not_counted() -> None:
    (layer,) = [one.layer for one in trace(Calls(torch.maximum), torch.randn(2, 8, 4)).layers if one.name == "maximum"]
    assert not layer.counted

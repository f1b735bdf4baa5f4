"""BatchNorm folded into the layer before it: equal to torch's, and refused where others read between the two."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from lamina.accelerate.common.batchnorm import fold_batchnorm
from lamina.build.models import create
from lamina.errors import UnsupportedError


def settled(model: nn.Module) -> Any:
    """With running statistics and affine parameters that are not those of the start."""
    torch.manual_seed(0)
    for one in model.modules():
        if isinstance(one, nn.BatchNorm1d | nn.BatchNorm2d):
            assert one.running_mean is not None and one.running_var is not None
            one.running_mean.normal_()
            one.running_var.uniform_(0.5, 2)
            if one.affine:
                nn.init.normal_(one.weight)
                nn.init.normal_(one.bias)
    return model.eval()


class Block(nn.Module):
    """A residual block whose ReLU is shared; ``between`` also reads what the normalization reads."""

    def __init__(self, between: bool = False) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU()
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        z = self.relu(self.norm(y))
        return self.relu(z + (y if self.between else x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_it_is_what_torch_computes(bias: bool, affine: bool) -> None:
    layers = nn.Conv2d(4, 6, 3, groups=2, bias=bias), nn.BatchNorm2d(6, affine=affine, eps=0.1)
    model = settled(nn.Sequential(*layers)).double()
    expected = fuse_conv_bn_eval(*copy.deepcopy(layers))
    x = torch.randn(2, 4, 7, 5, dtype=torch.float64)
    before = model(x)
    assert fold_batchnorm(model) == {"0": "1"}
    torch.testing.assert_close(model(x), before, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model[0].weight, expected.weight)
    assert type(model[1]) is nn.Identity and isinstance(model[0].bias, nn.Parameter)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU()), (3, 5)),
        (nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3)), (3, 2, 9)),
        (Block(), (2, 3, 6, 6)),
    ],
)
def test_layers_that_are_followed_by_a_normalization(model: nn.Module, shape: tuple[int, ...]) -> None:
    model = settled(model).double()
    x = torch.randn(shape, dtype=torch.float64)
    before = model(x)
    fold_batchnorm(model)
    torch.testing.assert_close(model(x), before, rtol=1e-12, atol=1e-12)
    assert not any(isinstance(one, nn.BatchNorm1d | nn.BatchNorm2d) for one in model.modules())


def test_a_residual_network_keeps_its_outputs() -> None:
    torch.manual_seed(0)
    model = settled(create("resnet18", 10)).double()
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    before = model(x)
    assert len(fold_batchnorm(model)) == 20
    torch.testing.assert_close(model(x), before)


class Twice(nn.Module):
    """One convolution, two normalizations."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.first, self.second = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.conv(self.first(self.conv(x))))  # type: ignore[no-any-return]


class Branching(nn.Module):
    """Whose code depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x) if x.sum() > 0 else x  # type: ignore[no-any-return]


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    model[0].register_forward_hook(lambda *_: None)
    return model


def tied() -> nn.Module:
    model: Any = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 1))
    model[3].weight = model[0].weight
    return model  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.Linear(2, 2)), "has no BatchNorm"),
        (nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)), "no BatchNorm alone reads"),
        (nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, track_running_stats=False)), "no BatchNorm alone reads"),
        (Block(between=True), "no BatchNorm alone reads"),
        (Twice(), "no BatchNorm alone reads"),
        (hooked(), "no BatchNorm alone reads"),
        (tied(), "no BatchNorm alone reads"),
        (Branching(), "torch.fx cannot trace the network: TraceError"),
    ],
)
def test_what_cannot_be_folded_stays_and_is_told(model: nn.Module, reason: str) -> None:
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UnsupportedError, match=reason):
        fold_batchnorm(model)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


class Remembering(nn.Sequential):
    """Keeps what it has seen."""

    seen: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        self.seen = input
        return super().forward(input)  # type: ignore[no-any-return]


def test_tracing_leaves_no_symbols_in_the_network() -> None:
    model = Remembering(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    fold_batchnorm(model)
    assert model.seen is None

"""Fusion of modules that the network's code calls one after the other, in a Sequential or not."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate import convert
from lamina.accelerate.common.batchnorm import fold_batchnorm
from lamina.accelerate.convert import WRITTEN, units_of
from lamina.accelerate.methods.fusion import Fusion
from lamina.accelerate.methods.fusion.nn import FusedConv2d, FusedLinear
from lamina.accelerate.select import Cache, Selector, selection
from lamina.build.models import create
from lamina.record import Timing

REFERENCE = Fusion(impl="reference")


class Stem(nn.Module):
    """A convolution, its ReLU and pooling by the code of ``middle``, and a linear layer with its tanh."""

    def __init__(self, middle: Callable[["Stem", Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.relu, self.pool = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2)
        self.other, self.linear, self.tanh = nn.Conv2d(4, 4, 1), nn.Linear(16, 5), nn.Tanh()
        self.middle = middle

    def forward(self, x: Tensor) -> Tensor:
        x = self.middle(self, x)
        return self.tanh(self.linear(x.flatten(1)))  # type: ignore[no-any-return]


def twice(model: Stem, x: Tensor) -> Tensor:
    return model.pool(x) + model.pool(x)  # type: ignore[no-any-return]


def residual(model: Stem, x: Tensor) -> Tensor:
    return model.relu(x) + x  # type: ignore[no-any-return]


MIDDLES: dict[str, tuple[Callable[[Stem, Tensor], Tensor], tuple[str, ...] | None, bool]] = {
    "modules": (lambda m, x: m.other(m.pool(m.relu(m.conv(x)))), ("conv", "relu", "pool"), True),
    "shared ReLU": (lambda m, x: m.relu(m.other(m.pool(m.relu(m.conv(x))))), ("conv", "pool"), True),
    "function": (lambda m, x: m.pool(F.relu(m.conv(x))), ("conv", "pool"), True),
    "in place": (lambda m, x: m.pool(F.relu(m.conv(x), inplace=True)), ("conv", "pool"), True),
    "method": (lambda m, x: m.pool(m.conv(x).relu()), ("conv", "pool"), True),
    "pooled by a function": (lambda m, x: F.max_pool2d(torch.relu(m.conv(x)), 2), ("conv",), False),
    "the ReLU has two readers": (lambda m, x: twice(m, m.relu(m.conv(x))), ("conv", "relu"), False),
    "the convolution has two readers": (lambda m, x: m.pool(residual(m, m.conv(x))), None, False),
    "called twice": (lambda m, x: m.pool(m.relu(m.conv(m.relu(m.conv(x))[:, :3]))), None, False),
    "another function": (lambda m, x: m.pool(F.leaky_relu(m.conv(x))), None, False),
    "its weight is read": (lambda m, x: m.pool(m.relu(m.conv(x))) * m.conv.weight.mean(), None, False),
}  # fmt: skip


@pytest.mark.parametrize("case", MIDDLES)
def test_units_compute_the_same(case: str) -> None:
    middle, names, pools = MIDDLES[case]
    torch.manual_seed(0)
    model: Any = Stem(middle).double()
    x = torch.randn(2, 3, 6 if case != "called twice" else 8, 6 if case != "called twice" else 8, dtype=torch.float64)
    x.requires_grad_()
    expected = model(x)
    (gradient,) = torch.autograd.grad(expected.square().sum(), x)
    keys = [*model.state_dict()]
    found, record = convert(model, REFERENCE)
    torch.testing.assert_close(found(x), expected)
    torch.testing.assert_close(torch.autograd.grad(found(x).square().sum(), x)[0], gradient)
    assert [*found.state_dict()] == keys
    assert isinstance(found.linear, FusedLinear) and isinstance(found.tanh, nn.Identity)
    assert ("conv" in {one.layer for one in record.replaced}) == (names is not None)
    if names is not None:
        assert isinstance(found.conv, FusedConv2d) and (found.conv.pool is not None) == pools
        identities = {name for name, one in found.named_children() if isinstance(one, nn.Identity)}
        assert identities == {*names[1:], "tanh"}


def test_a_unit_has_the_names_that_are_replaced_and_what_stays() -> None:
    units = {unit.names[0]: unit for unit in units_of(Stem(MIDDLES["shared ReLU"][0]), REFERENCE)}
    assert units["conv"].names == ("conv", "pool") and isinstance(units["conv"].stays, nn.ReLU)
    assert units["linear"].names == ("linear", "tanh") and units["linear"].stays is None
    assert [type(one) for one in units["conv"].module] == [nn.Conv2d, nn.ReLU, nn.MaxPool2d]  # type: ignore[arg-type]


def test_a_folded_residual_network() -> None:
    torch.manual_seed(0)
    model: Any = create("resnet10", 10).eval().double()
    fold_batchnorm(model)
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    expected = model(x)
    model, record = convert(model, REFERENCE)
    assert "conv1" in {one.layer for one in record.replaced} and model.conv1.pool is not None
    torch.testing.assert_close(model(x), expected)


class Aliased(nn.Module):
    """A convolution with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, 3, 1), nn.ReLU()
        self.again = self.conv

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.again(x))  # type: ignore[no-any-return]


def test_a_module_with_two_names_stays() -> None:
    model, record = convert(Aliased(), REFERENCE)
    assert not record.replaced and type(model.conv) is nn.Conv2d


class Branching(nn.Module):
    """Cannot be traced; a part of it is a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu = nn.Linear(4, 4), nn.ReLU()
        self.second = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.relu(self.first(x))) if x.sum() > 0 else x  # type: ignore[no-any-return]


def test_a_network_that_cannot_be_traced_has_the_units_of_its_sequentials() -> None:
    _, record = convert(Branching(), REFERENCE)
    assert [one.layer for one in record.replaced] == ["second.0"]
    (refusal,) = (str(one.refusal) for one in record.skipped if one.layer == "first")
    assert refusal.startswith("no activation follows it directly in a Sequential; torch.fx cannot trace the network: ")


def test_neighbours_are_kept_as_they_are_for_the_reasons_of_any_layer() -> None:
    model = Stem(MIDDLES["modules"][0])
    model.relu.register_forward_hook(lambda *_: None)
    _, record = convert(copy.deepcopy(model), REFERENCE)
    reasons = {one.layer: one.refusal for one in record.skipped}
    assert reasons["conv"] == reasons["pool"] == "it has hooks, which a new layer would lose"
    _, record = convert(Stem(MIDDLES["modules"][0]), REFERENCE, lambda name, _: name != "pool")
    assert "conv" not in {one.layer for one in record.replaced}


def test_the_relu_that_stays_is_in_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[nn.Module] = []

    def recorded(module: nn.Module, *rest: Any) -> Any:
        calls.append(module)
        return lambda: None

    monkeypatch.setattr(selection, "layer_step", recorded)
    even = Timing("cpu", "-", 1.0, 1.0, 1.0, 9)
    chosen = Selector(lambda steps: dict.fromkeys(steps, even), Cache(None, {}), "eager", False)
    model = Stem(MIDDLES["shared ReLU"][0])
    x = torch.randn(2, 3, 6, 6)
    convert(model, REFERENCE, lambda name, _: name in ("conv", "pool"), example=x, selector=chosen)
    kinds = [[type(one).__name__ for one in module] for module in calls if isinstance(module, nn.Sequential)]
    assert kinds == [["Conv2d", "ReLU", "MaxPool2d"], ["FusedConv2d", "ReLU"]]


LINEARS = ("first", "second", "third", "head")


class InPlace(nn.Module):
    """ReLUs in place that are no modules of their own, or are called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.head = (nn.Linear(8, 8) for _ in range(4))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x), inplace=True)
        x = self.third(self.relu(self.second(x))).relu_()
        return self.relu(self.head(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("training", [True, False])
def test_a_relu_in_place_of_what_training_saves_stays_alone(training: bool) -> None:
    torch.manual_seed(0)
    model = InPlace().train(training)
    x = torch.randn(4, 8)
    expected = model(x)
    found, record = convert(model, REFERENCE)
    assert [one.layer for one in record.replaced] == ([] if training else [*LINEARS])
    if training:
        assert {one.refusal for one in record.skipped if one.layer in LINEARS} == {WRITTEN}
        found(x).sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(found(x), expected)

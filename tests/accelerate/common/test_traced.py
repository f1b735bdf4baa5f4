"""Traces of networks: their calls, whatever arguments the networks take."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lamina.accelerate.common.chains import chains
from lamina.accelerate.common.traced import held, trace
from lamina.errors import UnsupportedError


class Base(nn.Module):
    """A convolution and its ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, 3, 1), nn.ReLU()


class Any_(Base):
    def forward(self, *inputs: Tensor) -> Tensor:
        return self.relu(self.conv(*inputs))  # type: ignore[no-any-return]


class Two(Base):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.relu(self.conv(x)) + y  # type: ignore[no-any-return]


class Optional_(Base):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        z = self.conv(x)
        return self.relu(z) if mask is None else z * mask  # type: ignore[no-any-return]


class TwoAndOptional(Base):
    def forward(self, x: Tensor, y: Tensor, scale: float | None = None) -> Tensor:
        z = self.conv(x) + y
        return self.relu(z if scale is None else scale * self.conv(z))  # type: ignore[no-any-return]


class InTraining(Base):
    def forward(self, x: Tensor) -> Tensor:
        z = self.conv(x)
        return self.relu(z) if self.training else z


class Switched(Base):
    def forward(self, x: Tensor, activate: bool = True) -> Tensor:
        z = self.conv(x)
        return self.relu(z) if activate else z


class Detector(Base):
    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        z = self.conv(x)
        if self.training and targets is None:
            raise ValueError("expected targets in training mode")
        return (z - targets).square().sum() if self.training else self.relu(z)  # type: ignore[no-any-return, operator]


class Unused(Base):
    def forward(self, x: Tensor, mask: Tensor | None = None, features: bool = False) -> Any:
        z = self.relu(self.conv(x))
        z = z if mask is None else z * mask
        return (z, z.mean()) if features and self.training else z


@pytest.mark.parametrize("kind", [Any_, Two, Unused])
def test_a_chain_of_whatever_takes_inputs(kind: type[Base]) -> None:
    model = kind()
    (chain,) = chains(trace(model))
    assert [link.path for link in chain] == ["conv", "relu"]
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("kind", [Optional_, TwoAndOptional, InTraining, Switched])
@pytest.mark.parametrize("training", [True, False])
def test_what_another_call_does_not_do_is_no_chain(kind: type[Base], training: bool) -> None:
    assert not list(chains(trace(kind().train(training))))


def test_a_call_that_only_training_mode_has_is_looked_at() -> None:
    assert not list(chains(trace(Detector().eval())))


class Listed(Base):
    def __init__(self) -> None:
        super().__init__()
        self.all = {"first": [self.conv], "second": (self.relu,)}

    def forward(self, x: Tensor) -> Tensor:
        return self.all["second"][0](self.all["first"][0](x))  # type: ignore[no-any-return]


def test_what_a_list_holds_too_cannot_be_replaced() -> None:
    model = Listed()
    assert held(model) == {id(model.conv): 1, id(model.relu): 1} and not trace(model).once


def test_a_layer_alone_is_a_network() -> None:
    assert trace(nn.Linear(2, 2)).once == {""}


class Keyword(Base):
    def forward(self, *, pixels: Tensor) -> Tensor:
        return self.relu(self.conv(pixels))  # type: ignore[no-any-return]


def test_other_calls_say_why_not() -> None:
    with pytest.raises(UnsupportedError, match="torch.fx cannot trace the network: TypeError"):
        trace(Keyword())


def test_the_network_is_not_changed() -> None:
    class Counting(Base):
        calls: Any = None

        def forward(self, x: Tensor) -> Tensor:
            self.calls = x
            self.count += x.sum()
            self.steps += 1
            self.mean.mul_(0.9).add_(0.1 * x.mean())
            torch.neg(self.steps, out=self.steps)
            self.seen.append(torch.rand(2))
            return self.relu(self.conv(x))  # type: ignore[no-any-return]

    model = Counting()
    model.seen = [1]
    for name in ("count", "steps", "mean"):
        model.register_buffer(name, torch.ones(()))
    state = torch.get_rng_state()
    trace(model)
    assert model.calls is None and model.seen == [1] and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(buffer, torch.ones(())) for buffer in model.buffers())

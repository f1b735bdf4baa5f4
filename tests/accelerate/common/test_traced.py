"""Traces of networks: their calls, whatever arguments the networks take."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lamina.accelerate.common.chains import chains
from lamina.accelerate.common.traced import trace
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


@pytest.mark.parametrize("kind", [Any_, Two, Optional_])
def test_a_chain_of_whatever_takes_inputs(kind: type[Base]) -> None:
    (chain,) = chains(trace(kind()))
    assert [link.path for link in chain] == ["conv", "relu"]


def test_what_is_left_out_has_its_default() -> None:
    traced = trace(TwoAndOptional())
    assert "conv" in traced.once and not list(chains(traced))


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
            return self.relu(self.conv(x))  # type: ignore[no-any-return]

    model = Counting()
    model.register_buffer("count", torch.zeros(()))
    trace(model)
    assert model.calls is None and torch.equal(model.get_buffer("count"), torch.zeros(()))

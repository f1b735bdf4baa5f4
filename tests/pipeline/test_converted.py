"""What a network's converted layers are called and counted."""

import torch
from torch import Tensor, nn

from lamina import build
from lamina.pipeline.converted import convert_network
from lamina.spec import Method


class Positions(nn.Module):
    """A layer under two names, and a matrix of the network's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.again, self.last = self.first, nn.Linear(16, 16)
        self.positions = nn.Parameter(torch.zeros(4, 16))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.again(self.first(x)) + self.positions)  # type: ignore[no-any-return]


def test_a_layer_counts_once_and_a_matrix_of_the_network_is_none() -> None:
    model = Positions()
    trace = build.trace(model, torch.randn(4, 16))
    found = convert_network(model, trace, Method.parse("circulant[block_size=8]"))
    assert found.weighted == 2
    assert found.executed()[0] == "circulant[block_size=8] (2 of 2 layers)"

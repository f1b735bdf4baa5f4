"""A traced network as a module again."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.build import TracedNetwork, trace


class Shared(nn.Module):
    """A module called twice, a weight used by a function, two inputs and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.first = nn.Linear(6, 6), nn.Linear(6, 4)
        self.weight = nn.Parameter(torch.randn(3, 6))
        self.unused = nn.Parameter(torch.randn(2))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = F.relu(self.twice(self.twice(x))) + y
        return self.first(z), F.linear(z, self.weight).add_(1.0)


def test_it_computes_what_the_network_computes() -> None:
    network, inputs = Shared(), (torch.randn(5, 6), torch.randn(5, 6))
    replayed = TracedNetwork(trace(network, *inputs), {})
    mine, theirs = replayed(*inputs), network(*inputs)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    used = [weight for name, weight in network.named_parameters() if name != "unused"]
    assert {id(weight) for weight in replayed.parameters()} == {id(weight) for weight in used}
    for a, b in zip(
        *(torch.autograd.grad([y.sum() for y in outputs], used) for outputs in (mine, theirs)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("training", [True, False])
def test_other_modules_compute_some_calls(training: bool) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2)).train(training)
    x = torch.randn(7, 3)
    traced = trace(network, x)
    index = next(index for index, call in enumerate(traced.calls) if call.module is network[3])
    other = nn.Linear(4, 2)
    replayed = TracedNetwork(traced, {index: other})
    torch.manual_seed(0)
    mine = replayed(x)
    torch.manual_seed(0)
    torch.testing.assert_close(mine, other(network[:3](x)), rtol=0, atol=0)
    assert network[3].weight not in {*replayed.parameters()} and other.weight in {*replayed.parameters()}


def test_tensors_are_freed_after_their_last_use() -> None:
    network = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    replayed = TracedNetwork(trace(network, torch.zeros(1, 3)), {})
    assert [len(dead) for dead in replayed._dead] == [1, 1, 1, 1]

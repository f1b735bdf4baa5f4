"""Calls of a traced network that are run again compute what the network computes."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from lamina.build.models import create
from lamina.build.trace import trace

from .replayed import Residual, replay


def test_replaying_the_calls_equals_the_network() -> None:
    torch.manual_seed(0)
    network, x = Residual(), torch.randn(2, 4, 5, 5)
    expected = network(x.clone())
    found = trace(network, x)
    before = x.clone()
    (result,) = replay(found, x)
    torch.testing.assert_close(result, expected)
    assert torch.equal(x, before), "a replayed in-place layer overwrote the network's input"


@pytest.mark.parametrize("name", ["lenet5", "cifarnet", "tdnn", "lstm", "gpt", "vit_tiny", "resnet10_cifar"])
def test_zoo_replays(name: str) -> None:
    from lamina.build.models import ZOO

    torch.manual_seed(0)
    entry, network = ZOO[name], create(name).eval()
    shape = (1, *entry.input)
    x = torch.randint(0, entry.classes, shape) if entry.kind == "tokens" else torch.randn(shape)
    with torch.no_grad():
        expected = network(x)
        (result,) = replay(trace(network, x), x)
    torch.testing.assert_close(result, expected)


def test_parameters_and_multiply_adds_are_the_modules_own() -> None:
    network = create("lenet5")
    found = trace(network, torch.randn(1, 1, 28, 28))
    assert sum(layer.parameters for layer in found.layers) == sum(p.numel() for p in network.parameters())


@dataclass
class Output:
    scores: Tensor
    note: str


def test_tensors_in_dataclasses_and_layers_of_weights_only_are_found() -> None:
    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 2))

        def forward(self, x: Tensor) -> Output:
            return Output(x @ torch.cat([torch.sigmoid(self.weight).softmax(dim=0), self.weight], 1), "raw")

    network, x = Scores(), torch.randn(5, 3)
    (result,) = replay(trace(network, x), x)
    torch.testing.assert_close(result, network(x).scores)

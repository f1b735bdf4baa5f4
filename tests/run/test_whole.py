"""The whole step computes the gradients of a training loop, and leaves none behind."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lamina import run


class Checkpointed(nn.Module):
    """A block whose activations are computed again in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.enter, self.block, self.head = nn.Linear(6, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 3)
        self.unused, self.reentrant = nn.Linear(2, 2), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(checkpoint(self.block, self.enter(x), use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_networks_get_the_gradients_of_a_loop(reentrant: bool) -> None:
    torch.manual_seed(0)
    network, x = Checkpointed(reentrant), torch.randn(4, 6)
    mine = torch.ones(3)
    network.head.bias.grad = mine
    step = run.whole_step(network, [x], run.seed_gradient(torch.tensor([0, 1, 2, 0])), True, [True])
    first, again = step(), step()
    assert network.head.bias.grad is mine
    assert all(one.grad is None for name, one in network.named_parameters() if name != "head.bias")
    network.head.bias.grad = None
    leaf = x.clone().requires_grad_()
    nn.functional.cross_entropy(network(leaf), torch.tensor([0, 1, 2, 0])).backward()
    for found in (first, again):
        for got, expected in zip(found, (leaf, *network.parameters()), strict=True):
            assert expected.grad is None if got is None else torch.allclose(got, expected.grad)


def test_other_errors_reach_the_caller() -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("a mistake of its own")

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Broken.apply(self.fc(x))

    step = run.whole_step(Network(), [torch.randn(1, 2)], run.seed_gradient(None), True)
    with pytest.raises(RuntimeError, match="a mistake of its own"):
        step()

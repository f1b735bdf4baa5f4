"""Inputs of a network, and what depends on them."""

import torch
from torch import nn

from lamina import run


def test_lazy_parameters_get_their_sizes_and_the_mode_stays() -> None:
    network = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()).train()
    run.size_lazy_parameters(network, torch.randn(2, 5))
    assert network[0].weight.shape == (3, 5) and network.training
    assert not network[1].running_mean.any()  # it ran in evaluation mode


def test_a_network_with_sizes_does_not_run() -> None:
    run.size_lazy_parameters(nn.Linear(3, 3), torch.randn(2, 5))

"""Layers tuned at each threshold on their own, and networks composed of them."""

import copy

import pytest
import torch
from torch import nn

from lamina.errors import UsageError
from lamina.pipeline.deft.pairs import DENSE, Pairs

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def network() -> nn.Module:
    """Two linear layers; the second has pairs of equal synapse vectors, which hardly correlate otherwise."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 20))
    with torch.no_grad():
        model[2].weight[:, 1::2] = model[2].weight[:, ::2]
    return model.eval()


def shift(model: nn.Module) -> None:
    """Tuning that can be told: every trainable parameter grows by one."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 1


def test_a_pair_is_pruned_and_tuned_alone(network: nn.Module) -> None:
    before = copy.deepcopy(network.state_dict())
    pairs = Pairs(network, {"2": (0.9,)}, shift)
    pairs.build()
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    pruned = pairs.network({"0": DENSE, "2": 0.9})
    assert torch.equal(pruned.get_submodule("0").weight, network.get_submodule("0").weight)  # type: ignore[arg-type]
    assert torch.equal(pruned.get_parameter("2.bias"), network.get_parameter("2.bias") + 1)
    assert pruned.get_parameter("2.weight").shape == (20, 3)  # one of each pair
    assert all(parameter.requires_grad for parameter in pruned.get_submodule("2").parameters())


def test_composed_networks_have_each_layer_as_it_was_tuned(network: nn.Module) -> None:
    pairs = Pairs(network, {"0": (0.5,), "2": (0.9, 0.5)}, shift)
    pairs.build()
    assert set(pairs.layers) == {("0", 0.5), ("2", 0.9), ("2", 0.5)}
    one, both = pairs.network({"0": DENSE, "2": 0.9}), pairs.network({"0": 0.5, "2": 0.9})
    for name, tensor in one.get_submodule("2").state_dict().items():
        assert torch.equal(tensor, both.get_submodule("2").state_dict()[name])
    shift(both)  # a composed network shares nothing
    assert torch.equal(pairs.network({"2": 0.9})(X), one(X))
    assert torch.equal(pairs.network({"0": DENSE, "2": DENSE})(X), network(X))


def test_what_was_not_built_or_cannot_be_pruned_is_refused(network: nn.Module) -> None:
    pairs = Pairs(network, {"2": (0.9,)}, shift)
    pairs.build()
    with pytest.raises(UsageError, match=r"layer '2' at 0.4: expected one of the thresholds \[0.9\]"):
        pairs.network({"2": 0.4})
    with pytest.raises(UsageError, match="layer '1' cannot be pruned"):
        Pairs(network, {"1": (0.9,)}, shift).build()

"""Switching between configurations computes what each of them does alone."""

import copy

import pytest
import torch
from torch import nn

from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.elimination import convert as cell
from lamina.accelerate.methods.elimination.switch import Switched, switchable, use
from lamina.errors import UsageError

SHARES = (1.0, 0.75, 0.5)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 4)))


def variant(layer: nn.Module, share: float) -> nn.Module:
    return layer if share == 1.0 else cell.replace(layer, Eliminated(keep=share))


def test_each_choice_computes_what_it_does_alone() -> None:
    dense, x = network(), torch.randn(3, 8)
    names = ("0", "2.0")
    model = switchable(
        copy.deepcopy(dense), {n: {s: variant(dense.get_submodule(n), s) for s in SHARES} for n in names}
    )
    assert torch.equal(model(x), dense(x))
    for first in SHARES:
        for second in SHARES:
            use(model, {"0": first, "2.0": second})
            alone = nn.Sequential(
                variant(dense.get_submodule("0"), first), nn.ReLU(), variant(dense.get_submodule("2.0"), second)
            )
            assert torch.equal(model(x), alone(x))
    twin = switchable(network(), {n: {s: variant(network().get_submodule(n), s) for s in SHARES} for n in names})
    twin.load_state_dict(model.state_dict())
    use(twin, {"0": 0.5, "2.0": 0.5})
    assert torch.equal(twin(x), model(x))


def test_a_choice_that_cannot_be_changes_nothing() -> None:
    model = switchable(network(), {"0": {1.0: nn.Linear(8, 8), 0.5: nn.Linear(8, 8)}})
    for choice, words in (({"0": 0.5, "2.0": 0.5}, "switched layers .0., got '2.0'"), ({"0": 0.3}, "got 0.3")):
        with pytest.raises(UsageError, match=words):
            use(model, choice)
        assert model[0].active == 1.0  # type: ignore[index, union-attr]
    with pytest.raises(UsageError, match="inside the model, got 'x'"):
        switchable(network(), {"x": {1.0: nn.Linear(8, 8)}})
    with pytest.raises(UsageError, match="at least one layer"):
        Switched({})

"""The contract brings layers, inputs and gradients to one device, whatever a provider makes them on."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lamina.testing import method_contract
from lamina.testing.method_contract import Layer, MethodContract

META = torch.device("meta")


@pytest.fixture
def elsewhere() -> MethodContract:
    """A contract of a device where nothing is unless it was brought there."""
    contract = MethodContract()
    contract.device = META
    provider: Any = SimpleNamespace(
        cell=SimpleNamespace(replace=lambda layer, config: layer),
        config=None,
        layers=lambda: {"linear": Layer(lambda: nn.Linear(3, 2), (4, 3))},
    )
    contract.provider = provider
    return contract


def test_layers_and_their_inputs_are_on_one_device(elsewhere: MethodContract) -> None:
    ((name, layer),) = elsewhere._converted()
    assert {parameter.device for parameter in layer.parameters()} == {META}
    assert elsewhere._input(name).device == META
    assert layer(elsewhere._input(name)).device == META


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_inputs_of_products_and_operators_are_brought_there(elsewhere: MethodContract, needs_gradient: bool) -> None:
    here = elsewhere._here(torch.ones(4, 3, requires_grad=needs_gradient).mT)
    assert here.device == META
    assert here.is_leaf
    assert here.requires_grad == needs_gradient
    assert here.stride() == (1, 3)


def test_the_upstream_gradient_is_where_the_result_is(elsewhere: MethodContract) -> None:
    inputs = (torch.ones(2, 3, device=META),)

    def doubled(x: Tensor) -> Tensor:
        return 2 * x

    results = method_contract._with_gradients(doubled, inputs, torch.float64, torch.float32)
    assert {result.device for result in results} == {META}

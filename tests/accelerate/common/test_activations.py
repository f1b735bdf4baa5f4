"""Functions, modules and names of activations."""

import pytest
import torch
from torch import nn

from lamina.accelerate.common.activation_names import Activation
from lamina.accelerate.common.activations import FUNCTIONS, MODULES, activation_of


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_its_module_whose_name_is_found(name: Activation) -> None:
    module, x = MODULES[name](), torch.randn(100)
    assert torch.equal(FUNCTIONS[name](x), module(x)) and activation_of(module) == name
    assert activation_of(type("Other", (type(module),), {})()) is None  # a subclass may compute something else


def test_other_modules_have_no_name() -> None:
    assert [activation_of(one) for one in (nn.SiLU(), nn.Linear(2, 2), nn.ReLU6())] == [None] * 3

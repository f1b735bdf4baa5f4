"""Networks under torch.compile are those that were written."""

import pytest
import torch
from torch import nn

from lamina.build import from_external
from lamina.build.eager import COMPILED, eager, is_compiled
from lamina.build.models.external import External

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # on the import of the compiler


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU())


def test_wrappers_are_removed_from_the_network_and_its_parts() -> None:
    inner = plain()
    network = torch.compile(nn.Sequential(nn.Linear(8, 8), torch.compile(inner)))  # type: ignore[call-overload]
    assert is_compiled(network) and not is_compiled(plain())  # type: ignore[arg-type]
    found = eager(network)  # type: ignore[arg-type]
    assert not is_compiled(found) and found[1] is inner  # type: ignore[index]


def test_a_module_that_compiles_its_own_call_runs_as_it_is() -> None:
    network = plain()
    network[0].compile()
    assert is_compiled(network)
    assert eager(network) is network and not is_compiled(network)


def test_layers_have_the_names_of_the_network_as_it_is_written() -> None:
    target = from_external("mine", lambda: External(torch.compile(plain())), (8,))  # type: ignore[arg-type]
    assert target.remarks == (COMPILED,)
    assert [layer.name for layer in target.resolve(2)] == ["0", "1"]
    assert from_external("mine", lambda: External(plain()), (8,)).remarks == ()


def test_scripted_modules_stay_as_they_are() -> None:
    scripted = torch.jit.script(plain())
    network = nn.Sequential(scripted)
    assert not is_compiled(network) and eager(network) is network and network[0] is scripted

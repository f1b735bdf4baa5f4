"""Networks that do what a command does not expect: one clear message each, and stdout for results only."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Lamina

NETWORKS = """
import sys
import torch
from torch import nn

class Calls(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f, self.body = f, nn.Linear(8, 8)
    def forward(self, x):
        return self.f(self.body, x)

def prints():
    def forward(body, x):
        print("printed in forward")
        return body(x)
    print("printed by the constructor")
    return Calls(forward)

def on_meta():
    with torch.device("meta"):
        return nn.Linear(8, 8)

def exits(): return Calls(lambda body, x: sys.exit(3))
def text(): return Calls(lambda body, x: "cat")
def raises(): return Calls(lambda body, x: 1 / 0)
def narrow(): return nn.Linear(8, 8).bfloat16()
def compiled(): return torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
"""

QUICK = ("--device", "cpu", "--input-size", "8", "--batch-size", "2", "--repeat", "1")


@pytest.fixture(autouse=True)
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The networks above, as a module that Python finds."""
    (tmp_path / "hostile.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("verb", ["bench", "profile", "what-if"])
@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("on_meta", "Linear: weight, bias on the meta device: expected weights with values"),
        ("exits", "the code of the network ended the program (SystemExit: 3)"),
        ("text", "its forward pass makes no tensor: there is no layer to measure"),
        ("raises", "Calls could not be traced on input ("),
    ],
)
def test_what_cannot_be_measured_is_one_message(lamina: Lamina, verb: str, network: str, message: str) -> None:
    result = lamina(verb, f"hostile:{network}", *QUICK)
    assert result.exit_code == 1, result.output
    assert message in result.stderr and "unexpected" not in result.stderr


@pytest.mark.parametrize("option", [("--input-size", "3x32x32"), ("--input", "x=float32:8"), ("--input-fn", "a:b")])
def test_inputs_of_a_network_that_has_its_own_are_refused(lamina: Lamina, option: tuple[str, str]) -> None:
    result = lamina("bench", "lenet5", "--device", "cpu", *option)
    assert result.exit_code == 2 and "are for networks of packages: lenet5 has inputs of its own" in result.stderr


@pytest.mark.parametrize("verb", ["bench", "profile"])
def test_stdout_is_for_results(lamina: Lamina, verb: str) -> None:
    result = lamina(verb, "hostile:prints", *QUICK, "--format", "json")
    assert {row["layer"] for row in json.loads(result.stdout)} >= {"body"}
    assert "printed in forward" in result.stderr and "printed by the constructor" in result.stderr


def test_weights_of_another_type_are_converted_with_a_note(lamina: Lamina) -> None:
    note = "its weights are bfloat16 and are converted to fp32; --precision bf16 measures it as it is"
    assert note in lamina("bench", "hostile:narrow", *QUICK).stderr
    assert "are converted" not in lamina("bench", "hostile:narrow", *QUICK, "--precision", "bf16").stderr


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_compiled_network_is_measured_as_it_is_written(lamina: Lamina) -> None:
    result = lamina("bench", "hostile:compiled", *QUICK, "--format", "json")
    assert "compiled by torch.compile: its layers are measured as they are written" in result.stderr
    assert {row["layer"] for row in json.loads(result.stdout)} == {"0", "1", "hostile:compiled"}

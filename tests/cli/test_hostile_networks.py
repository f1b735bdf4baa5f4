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
def even(body, x):
    if len(x) % 2:
        raise AssertionError("batches must be even")
    return body(x)
def only_even(): return Calls(even)

class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
    def forward(self, x):
        rows = torch.nested.nested_tensor([x[:1], x[1:]], layout=torch.jagged)
        return torch.nested.to_padded_tensor(self.body(rows), 0.0).sum(1)

class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.register_buffer("edges", torch.eye(8).to_sparse())
    def forward(self, x):
        return self.body(torch.sparse.mm(self.edges, x.T).T)

def spectral(): return nn.Sequential(nn.utils.spectral_norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 8))
def narrow(): return nn.Linear(8, 8).bfloat16()
def compiled(): return torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
"""

QUICK = ("--device", "cpu", "--input-size", "8", "--batch-size", "2", "--repeat", "1")
SYNTHETIC = ("--data", "synthetic", "--device", "cpu", "--input-size", "8", "--output", "out")


@pytest.fixture(autouse=True)
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The networks above, as a module that Python finds."""
    (tmp_path / "hostile.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


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


def test_an_error_that_the_network_raises_is_told_with_its_line(lamina: Lamina) -> None:
    quick = ("--train-epochs", "1", "--train-batch", "4", "--calibration", "4", "--keep-ratios", "0.5")
    result = lamina("deft", "hostile:only_even", *SYNTHETIC, *quick)
    said = " ".join(result.stderr.split())
    assert result.exit_code == 1 and "batches must be even" in said, result.output
    assert "unexpected" not in said


def test_a_network_of_nested_tensors_is_one_row(lamina: Lamina) -> None:
    result = lamina("bench", "hostile:Nested", *QUICK, "--format", "json")
    assert result.exit_code == 0, result.output
    assert {row["layer"] for row in json.loads(result.stdout)} == {"nested"}
    assert "is one row, since its layers cannot be traced" in " ".join(result.stderr.split())


@pytest.mark.parametrize("verb", ["deft", "study"])
def test_weights_that_no_file_can_hold_are_refused_before_the_work(lamina: Lamina, verb: str) -> None:
    result = lamina(verb, "hostile:Graph", *SYNTHETIC)
    assert result.exit_code == 1 and "edges: safetensors files hold strided tensors" in " ".join(result.stderr.split())


def test_an_unknown_input_is_named(lamina: Lamina) -> None:
    result = lamina("bench", "hostile:spectral", "--input", "x=float32:8", "--device", "cpu")
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "the forward pass of Sequential has no input 'x': expected one of: input" in said

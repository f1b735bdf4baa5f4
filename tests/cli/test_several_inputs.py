"""Commands that train, on a network of several inputs, given as a user gives them."""

from pathlib import Path

import pytest
from tests.cli.conftest import Lamina

from lamina.store import open_store

JOINED = """
from torch import nn

class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(5, 6), nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x, tokens):
        return {"states": self.head(nn.functional.relu(self.body(x)[:, None] + self.embed(tokens)))}
"""
INPUTS = ("--input", "x=float32:4", "--input", "tokens=int64:7", "--data", "synthetic", "--device", "cpu")


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "several_inputs.py").write_text(JOINED)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("train", ["--epochs", "1"]),
        ("sparsity", ["--iterations", "2"]),
        ("deft", ["--train-epochs", "1", "--calibration", "4", "--keep-ratios", "0.5"]),
    ],
)
def test_networks_of_several_inputs_are_trained(lamina: Lamina, tmp_path: Path, verb: str, words: list[str]) -> None:
    words = [*words, "--output", str(tmp_path / "out")] if verb == "deft" else words
    result = lamina(verb, "several_inputs:Joined", *INPUTS, *words)
    assert result.exit_code == 0, result.output
    with open_store(tmp_path / "lamina.db") as store:
        (this,) = store.runs()
    assert this.status == "done" and "the loss is the mean square of its outputs" in this.remarks[0]
    if verb == "deft":
        assert "output error" in result.stdout and "accuracy" not in result.stdout.partition("note:")[0]


def test_real_data_fill_one_input(lamina: Lamina) -> None:
    result = lamina("train", "several_inputs:Joined", *INPUTS, "--data", "fashion-mnist")
    assert result.exit_code == 2 and "--data synthetic draws random ones" in result.output

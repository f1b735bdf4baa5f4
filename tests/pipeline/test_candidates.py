"""Names in a file of Python that can be networks, without running it."""

from pathlib import Path

import pytest

from lamina.pipeline.candidates import candidates, nearest_network

NETS = """
import torch
from torch import nn

raise RuntimeError("it ran")

def rope(x, positions): return x
def small(width=8):
    if width > 8:
        return Wide(width)
    return Net(width)
def keywords(*, width): return Net(width)
def _hidden(): return Net()
def main(): print(small())
def stop():
    if small(): return

class Block(nn.Module):
    def __init__(self, width): ...
class Narrow(Block): ...
class Net(nn.Module):
    def __init__(self, width=8): ...
class Wide(Net): ...
class Plain(nn.Sequential): ...
class Loaded(Pretrained):
    def forward(self, x): ...
class Rounded(torch.autograd.Function):
    def forward(self, x): ...
class Settings: ...
"""


@pytest.fixture
def nets(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(NETS)
    return path


def test_modules_and_functions_that_need_no_arguments(nets: Path) -> None:
    assert candidates(nets) == (["Net", "Wide", "Plain", "Loaded"], ["small"])


def test_the_nearest_can_be_a_network(nets: Path) -> None:
    assert nearest_network(nets, "Nett") == "did you mean 'Net'?"
    assert nearest_network(nets, "smal") == "did you mean 'small'?"
    assert nearest_network(nets, "Rope") == "expected one of: Loaded, Net, Plain, Wide, small"
    nets.write_text("def small(): return 1")
    assert nearest_network(nets, "Rope") == "expected one of: small"


@pytest.mark.parametrize("text", ["def broken(", "\0", "x = 1", "class Net(Module): ...\ndef __getattr__(name): ..."])
def test_files_that_do_not_tell(nets: Path, text: str) -> None:
    nets.write_text(text)
    assert candidates(nets) == ([], []) and nearest_network(nets, "Net") == ""

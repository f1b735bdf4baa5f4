"""Operators of torchvision in PyTorch."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from lamina.build.models import external, vision_operators

OPERATORS = """
import torch
if not vision_operators.OPERATORS:
    raise RuntimeError("operator torchvision::nms does not exist")
def is_model(name): return True
def create_model(name): return torch.nn.Identity()
"""

DEFERRED = """
import importlib

def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        raise ModuleNotFoundError(f"Could not import module {name!r}") from error
    from torch.nn import Identity
    return Identity
"""


def test_operators_of_a_torchvision_for_cuda_are_defined_beside_a_torch_for_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library:
        defined: list[str] = []

        def __init__(self, *what: str) -> None:
            assert what == ("torchvision", "FRAGMENT")

        def define(self, schema: str) -> None:
            self.defined.append(schema.partition("(")[0])

        def impl(self, name: str, function: object, key: str) -> None:
            assert (name, function, key) == ("nms", vision_operators.nms, "CPU")

    monkeypatch.setattr(vision_operators, "OPERATORS", [])
    monkeypatch.setattr(torch.library, "Library", Library)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "visionnets").mkdir()
    for name in ("timm", "torchvision", "visionnets", "visionnets.later", "visionnets.deferred"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "torchvision.py").write_text("from lamina.build.models import vision_operators\n" + OPERATORS)
    (tmp_path / "timm.py").write_text("from torchvision import *")
    later = "def build():\n    from torchvision import create_model as make\n    return make('any')"
    (tmp_path / "visionnets" / "later.py").write_text(later)
    (tmp_path / "visionnets" / "deferred.py").write_text(DEFERRED)
    assert isinstance(external.load("visionnets.later:build").module, nn.Identity)
    vision_operators.OPERATORS.clear()
    del sys.modules["torchvision"]
    external.load("visionnets.deferred:Net")
    vision_operators.OPERATORS.clear()
    del sys.modules["torchvision"]
    assert isinstance(external.load("timm:any").module, nn.Identity)
    assert Library.defined == 3 * ["nms", "qnms"]


def test_boxes_that_overlap_a_better_one_are_dropped() -> None:
    boxes = torch.tensor([[0, 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30], [0, 0, 10, 9], [5, 0, 15, 10]]).float()
    scores = torch.tensor([0.5, 0.9, 0.1, 0.2, 0.3])
    assert vision_operators.nms(boxes, scores, 0.5).tolist() == [1, 4, 2]
    assert vision_operators.nms(boxes, scores, 0.99).tolist() == [1, 0, 4, 3, 2]
    assert vision_operators.nms(boxes[:0], scores[:0], 0.5).tolist() == []

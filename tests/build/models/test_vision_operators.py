"""Operators of torchvision in PyTorch."""

import sys
from itertools import product
from math import ceil
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
        monkeypatch.setitem(sys.modules, name, None)  # so that what is imported here leaves at the end
        monkeypatch.delitem(sys.modules, name)
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
    assert vision_operators.nms(boxes.requires_grad_(), scores, 0.5).tolist() == [1, 4, 2]
    assert vision_operators.nms(boxes, scores, 0.99).tolist() == [1, 0, 4, 3, 2]
    assert vision_operators.nms(boxes[:0], scores[:0], 0.5).tolist() == []


@pytest.mark.parametrize("sampling_ratio", [2, 0])
@pytest.mark.parametrize("aligned", [False, True])
def test_regions_are_means_of_bilinear_samples(sampling_ratio: int, aligned: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 7, 9, generator=generator, dtype=torch.float64)
    rois = torch.tensor([[1, 2.0, 1.5, 15.0, 12.5], [0, -9.0, -3.0, 30.0, 20.0], [1, 4.0, 4.0, 4.5, 4.25]])
    found = vision_operators.roi_align(x, rois, 0.5, 2, 3, sampling_ratio, aligned)
    for one, pooled in zip(rois.tolist(), found, strict=True):
        x1, y1, x2, y2 = (0.5 * each - 0.5 * aligned for each in one[1:])
        w, h = (x2 - x1, y2 - y1) if aligned else (max(x2 - x1, 1), max(y2 - y1, 1))
        ny, nx = (sampling_ratio, sampling_ratio) if sampling_ratio else (max(1, ceil(h / 2)), max(1, ceil(w / 3)))
        for row, column in product(range(2), range(3)):
            total = x.new_zeros(3)
            for i, j in product(range(ny), range(nx)):
                y, z = y1 + h / 2 * (row + (i + 0.5) / ny), x1 + w / 3 * (column + (j + 0.5) / nx)
                if -1 <= y <= 7 and -1 <= z <= 9:
                    y, z = min(max(y, 0), 6), min(max(z, 0), 8)
                    low, left = min(int(y), 5), min(int(z), 7)
                    for a, b in product((0, 1), (0, 1)):
                        weight = (1 - abs(y - low - a)) * (1 - abs(z - left - b))
                        total += weight * x[int(one[0]), :, low + a, left + b]
            torch.testing.assert_close(pooled[:, row, column], total / (ny * nx), rtol=1e-5, atol=1e-6)


def test_no_region_is_pooled_to_none() -> None:
    assert vision_operators.roi_align(torch.ones(1, 2, 3, 3), torch.zeros(0, 5), 1, 2, 2, 2, False).shape == (
        0,
        2,
        2,
        2,
    )

"""Fusion finds neighbours, keeps names and parameters, and says what it leaves alone."""

import copy

import pytest
import torch
from torch import nn

from lamina.accelerate import convert
from lamina.accelerate.methods.fusion import Fusion
from lamina.accelerate.methods.fusion.nn import FusedConv2d, FusedLinear
from lamina.build.models import create

REFERENCE = Fusion(impl="reference")


def test_alexnet_keeps_its_names_and_computes_the_same() -> None:
    torch.manual_seed(0)
    plain = create("lenet5", None).double()
    model, record = convert(copy.deepcopy(plain), REFERENCE)
    assert [one.layer for one in record.replaced] == ["features.0", "features.3", "classifier.0", "classifier.2"]
    assert record.replaced[0].kind == "Conv2d + ReLU + MaxPool2d" and record.method == "fused[impl=reference]"
    assert {one.layer: one.refusal for one in record.skipped} == {
        "classifier.4": "no activation follows it directly"
    }
    assert [*model.state_dict()] == [*plain.state_dict()]
    x = torch.randn(2, 1, 28, 28, dtype=torch.float64)
    torch.testing.assert_close(model(x), plain(x))


def test_parameters_are_the_same_objects() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    weight = model[0].weight
    fused, _ = convert(model, REFERENCE)
    assert isinstance(fused[0], FusedLinear) and fused[0].weight is weight and isinstance(fused[1], nn.Identity)


def test_pooling_can_be_left_out() -> None:
    parts = nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2)
    fused, _ = convert(nn.Sequential(*parts), Fusion(impl="reference", pool=False))
    assert isinstance(fused[0], FusedConv2d) and fused[0].pool is None and fused[2] is parts[2]


@pytest.mark.parametrize(
    "parts",
    [
        (nn.Linear(2, 2), nn.Dropout(), nn.ReLU()),
        (nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.ReLU()),
        (nn.Conv2d(2, 2, 1), nn.Tanh()),
        (nn.ReLU(), nn.Linear(2, 2)),
    ],
)
def test_what_stands_between_keeps_layers_apart(parts: tuple[nn.Module, ...]) -> None:
    model, record = convert(nn.Sequential(*parts), REFERENCE)
    assert tuple(model) == parts and not record.replaced and len(record.skipped) == len(parts)


def test_a_pooling_with_indices_is_not_taken_in() -> None:
    model, _ = convert(nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.MaxPool2d(2, return_indices=True)), REFERENCE)
    assert isinstance(model[0], FusedConv2d) and model[0].pool is None


def test_one_reason_keeps_the_whole_run() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model[1].register_forward_hook(lambda *_: None)
    _, record = convert(model, REFERENCE)
    assert {one.layer: one.refusal for one in record.skipped} == dict.fromkeys(
        "01", "it has hooks, which a new layer would lose"
    )
    _, record = convert(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), REFERENCE, lambda name, layer: name == "1")
    assert [one.refusal for one in record.skipped] == ["not selected"] * 2

"""Passes with compressed activations: the same gradients, and nothing left behind."""

import copy

import pytest
import torch
from torch import nn

from lamina.accelerate.training.compressed_activations import compressed, context, saving


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.ReLU(), nn.Flatten())


X = torch.randn(4, 3, 24, 24, generator=torch.Generator().manual_seed(0))


def gradients(model: nn.Module) -> list[torch.Tensor]:
    model.zero_grad()
    model(X).square().sum().backward()
    return [one.grad.clone() for one in model.parameters() if one.grad is not None]


def test_gradients_are_bitwise_the_same() -> None:
    model = net()
    expected = gradients(model)
    with compressed(model):
        found = [gradients(model) for _ in range(2)]
    for each in found:
        assert len(each) == len(expected) and all(torch.equal(a, b) for a, b in zip(each, expected, strict=True))


def test_activations_are_compressed_where_gradients_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[object] = []
    enter = context.CompressedActivations.__enter__
    monkeypatch.setattr(
        context.CompressedActivations, "__enter__", lambda self: (entered.append(self), enter(self))[1]
    )
    forward = saving(net())
    with torch.no_grad():
        forward(X)
    assert not entered
    y = forward(X)
    assert len(entered) == 1 and entered[0].statistics.tensors.get("mask")  # type: ignore[attr-defined]
    y.sum().backward()
    forward(X).sum().backward()
    assert entered[1] is entered[0]


def test_a_model_is_as_before_at_the_end() -> None:
    model = net()
    before = {*vars(model)}
    with pytest.raises(RuntimeError, match="channels"), compressed(model):
        model(X[:, :2])
    assert {*vars(model)} == before and copy.deepcopy(model)(X).shape == model(X).shape


def test_a_forward_of_the_model_itself_is_put_back() -> None:
    model = net()
    own = model.forward = lambda x: x + 1  # type: ignore[method-assign,assignment]
    with compressed(model):
        assert torch.equal(model(X), X + 1)
    assert model.forward is own

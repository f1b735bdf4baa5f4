"""Steps of layers and of whole models, as they are timed."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lamina.accelerate.select import layer_step, observe
from lamina.accelerate.select import step as steps
from lamina.record import MODES


def call_of(module: nn.Module, *inputs: Tensor) -> Any:
    return observe(module, [""], inputs)[""]


def test_modes_compile_as_their_names_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, str] = {}

    def compile_(model: nn.Module, *, mode: str, dynamic: bool) -> nn.Module:
        asked[current] = mode
        return model

    monkeypatch.setattr(torch, "compile", compile_)
    net, x = nn.Linear(4, 4), torch.randn(2, 4)
    for current in MODES:
        layer_step(net, call_of(net, x), current, training=True, whole=True)()
    assert asked == {"compiled": "default", "reduce-overhead": "reduce-overhead", "compiled-graph": "default"}


class Outputs(nn.Module):
    """Several outputs: complex, of integers, and of an embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4, sparse=True)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.linear(self.table(x))
        return {"complex": torch.complex(y, y), "plain": y, "indices": x}


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every update that is made."""
    made: list[Any] = []
    kind = steps._Update

    def make(parameters: list[nn.Parameter]) -> Any:
        made.append(kind(parameters))
        return made[-1]

    monkeypatch.setattr(steps, "_Update", make)
    return made


def test_the_update_of_a_whole_step_changes_copies_alone(updates: list[Any]) -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(3, 4)
    before = [one.detach().clone() for one in model.parameters()]
    for one in model.parameters():
        one.grad = torch.ones_like(one)
    step = layer_step(model, call_of(model, x), "eager", True, whole=True)
    expected = torch.autograd.grad(model(x).square().mean(), [*model.parameters()])
    for _ in range(2):
        torch.testing.assert_close(step(), expected)
    (update,) = updates
    for old, one, copy, gradient in zip(before, model.parameters(), update.copies, expected, strict=True):
        assert torch.equal(one, old) and torch.equal(one.grad, torch.ones_like(one))  # type: ignore[arg-type]
        torch.testing.assert_close(copy, old - 2e-3 * gradient)


def test_any_outputs_and_sparse_gradients(updates: list[Any]) -> None:
    model = Outputs()
    step = layer_step(model, call_of(model, torch.tensor([1, 2])), "eager", True, whole=True)
    table, weight, bias = step()  # type: ignore[misc]
    assert table.is_sparse and weight.any() and bias.any()
    assert torch.equal(updates[0].copies[0], model.table.weight)  # which the update leaves out


def test_the_loss_is_the_sum_of_mean_squares() -> None:
    real = torch.randn(3, 5, requires_grad=True)
    other = torch.randn(7, dtype=torch.complex64, requires_grad=True)
    loss = steps.plain_loss(real)
    loss.backward()
    torch.testing.assert_close(loss, real.square().mean())
    torch.testing.assert_close(real.grad, 2 * real.detach() / real.numel())
    both = steps.plain_loss({"a": (real.bfloat16(), torch.ones(2, dtype=torch.int64)), "b": other})
    torch.testing.assert_close(both, real.bfloat16().float().square().mean() + other.abs().square().mean())


def test_a_whole_step_without_training_or_parameters_has_no_update(updates: list[Any]) -> None:
    model, x = nn.Linear(4, 2), torch.randn(3, 4)
    assert torch.equal(layer_step(model, call_of(model, x), "eager", False, whole=True)(), model(x))  # type: ignore[arg-type]
    assert torch.equal(layer_step(nn.ReLU(), call_of(nn.ReLU(), x), "eager", True, whole=True)(), x.relu())  # type: ignore[arg-type]
    assert not updates


@pytest.mark.parametrize(
    ("gradient", "like"),
    [
        (torch.randn(2, 3), torch.zeros(2, 3)),
        (torch.randn(4, 3, 1, 1), torch.zeros(4, 3, 1, 1).to(memory_format=torch.channels_last)),
        (torch.randn(4, 3, 2, 2), torch.zeros(4, 3, 2, 2).to(memory_format=torch.channels_last)),
    ],
)
def test_gradients_get_the_strides_of_their_parameters(gradient: Tensor, like: Tensor) -> None:
    found = steps._laid_out(gradient, like)
    assert torch.equal(found, gradient) and found.stride() == like.stride()
    assert (found.data_ptr() == gradient.data_ptr()) == (gradient.shape[2:] != (2, 2))


def test_without_memory_for_copies_there_is_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(parameters: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(steps, "_Update", full)
    model, x = nn.Linear(4, 2), torch.randn(3, 4)
    assert len(layer_step(model, call_of(model, x), "eager", True, whole=True)()) == 2  # type: ignore[arg-type]

"""Parameter groups scale their learning rates, gradients stay within their bound, and checkpoints take little time."""

import copy
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lamina.run import train
from lamina.run.checkpoint import load
from lamina.spec.training import Training

SETTINGS = Training(epochs=1, learning_rate=0.5, momentum=0.0, weight_decay=0.0, warmup_steps=0)
X, Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2


def network() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def trained(module: nn.Module, groups: list[dict[str, object]] | None, steps: int = 3) -> nn.Module:
    batches = [(X, Y)] * steps
    list(train(module, SETTINGS, lambda *_: batches, lambda: batches[:1], steps, torch.device("cpu"), groups=groups))
    return module


def test_the_schedule_scales_the_rate_of_each_group() -> None:
    module, expected = network(), network()
    groups: list[dict[str, object]] = [{"params": [module.weight], "lr": 2.0}, {"params": [module.bias], "lr": 0.0}]
    trained(module, groups)
    assert [group["lr"] for group in groups] == [2, 0]
    for step in range(3):
        F.cross_entropy(expected(X), Y).backward()
        with torch.no_grad():
            assert expected.weight.grad is not None
            expected.weight -= 4 * SETTINGS.rate(step, 3) * expected.weight.grad
        expected.zero_grad()
    torch.testing.assert_close(module.weight, expected.weight)
    assert torch.equal(module.bias, expected.bias)


def test_one_group_of_all_parameters_equals_no_groups() -> None:
    module = network()
    grouped = trained(module, [{"params": list(module.parameters()), "lr": SETTINGS.learning_rate}])
    for ours, theirs in zip(grouped.parameters(), trained(network(), None).parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_dropout_is_that_of_the_seed_and_the_step_whatever_the_caller_evaluates() -> None:
    module = nn.Sequential(network(), nn.Dropout(0.5))
    expected, seen = copy.deepcopy(module), []
    batches = [(X, Y)] * 3
    settings = SETTINGS.model_copy(update={"learning_rate": 1e-9})
    module.eval()
    cpu = torch.device("cpu")
    for done in train(module, settings, lambda *_: batches, lambda: batches[:1], 3, cpu, report_every=1):
        seen.append(done.train_loss * done.step)
        module.eval()  # as a caller's own evaluation does
    losses = []
    for step in range(3):
        torch.manual_seed(hash((settings.seed, step, 0)) % 2**63)
        losses.append(F.cross_entropy(expected(X), Y).item())
    assert seen == pytest.approx([sum(losses[: step + 1]) for step in range(3)])
    assert len({round(loss, 6) for loss in losses}) == 3


def stepped(precision: str, clip_norm: float | None) -> list[torch.Tensor]:
    """How far each parameter goes in one step of plain gradient descent at a learning rate of 1."""
    settings = SETTINGS.model_copy(update={"learning_rate": 1.0, "precision": precision, "clip_norm": clip_norm})
    module = network()
    list(train(module, settings, lambda *_: [(X, Y)], lambda: [(X, Y)], 1, torch.device("cpu")))
    moved = zip(module.parameters(), network().parameters(), strict=True)
    return [(after - before).detach() for after, before in moved]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])  # fp16 scales its loss, and so the gradients
def test_gradients_are_clipped_by_their_total_norm(precision: str) -> None:
    free = stepped(precision, None)
    norm = torch.cat([way.flatten() for way in free]).norm().item()
    for bound in (norm / 7, 2 * norm):
        for way, whole in zip(stepped(precision, bound), free, strict=True):
            torch.testing.assert_close(way, whole * min(1, bound / norm), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("save_s", "expected"), [(0.01, [2, 4, 6, 8, 10]), (0.2, [2, 8, 10]), (100.0, [2, 10])])
def test_checkpoints_that_take_long_are_written_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_s: float, expected: list[int]
) -> None:
    module = sys.modules[train.__module__]
    now, written, save = 0.0, [], module.save  # type: ignore[attr-defined]

    def slow(path: Path, tensors: object, state: dict[str, int]) -> None:
        nonlocal now
        now += save_s
        written.append(state["step"])
        save(path, tensors, state)

    def batches(*_: object) -> object:
        nonlocal now
        for _step in range(10):
            now += 0.8
            yield X, Y

    monkeypatch.setattr(module, "save", slow)
    checkpoint = tmp_path / "a.safetensors"
    device, clock = torch.device("cpu"), lambda: now
    list(train(network(), SETTINGS, batches, lambda: [(X, Y)], 10, device, checkpoint, save_every=2, seconds=clock))  # type: ignore[arg-type]
    assert written == expected
    assert load(checkpoint)[1]["step"] == 10


class Versioned(nn.Linear):
    """Its state holds more than tensors."""

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 2}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"version": 2}


def test_checkpoints_of_states_with_other_things_than_tensors_are_resumed(tmp_path: Path) -> None:
    def run(checkpoint: Path, steps: int, resume: bool = False) -> nn.Linear:
        torch.manual_seed(0)
        module = Versioned(3, 2)
        batches = [(X, Y)] * 4
        updates = train(
            module, SETTINGS, lambda _, start: batches[start:], lambda: batches[:1], 4, torch.device("cpu"),
            checkpoint, save_every=2, report_every=1, resume=resume,
        )  # fmt: skip
        for count, _ in enumerate(updates, 1):
            if count == steps:
                break
        return module

    run(tmp_path / "a.safetensors", 3)
    assert load(tmp_path / "a.safetensors")[1]["step"] == 2
    resumed = run(tmp_path / "a.safetensors", 9, resume=True)
    assert torch.equal(resumed.weight, run(tmp_path / "b.safetensors", 9).weight)

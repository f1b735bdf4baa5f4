"""The network of a study: what is known of a step beside its time."""

from typing import Any

import pytest
import torch
from torch import nn

from lamina import pipeline
from lamina.pipeline.deft.calibration import material
from lamina.pipeline.study import subject as module
from lamina.pipeline.study.subject import Subject
from lamina.pipeline.train import objective
from lamina.record.study import Settings
from lamina.spec.plan import CAPTURED


def subject(training: bool) -> Subject:
    target, _ = pipeline.find("lenet5")
    device = torch.device("cpu")
    parts = material("synthetic", target.inputs[0].shape, 8, 0, device, target.train_test)
    judge = objective(parts.learn.name, parts.classes, print)
    return Subject("lenet5", target.make(10), device, training, 4, parts, judge)


@pytest.mark.parametrize("training", [False, True])
def test_steps_that_replay_have_the_memory_of_those_in_eager_mode(training: bool) -> None:
    one = subject(training)
    eager, replayed = Settings("fp32", "nchw", "eager"), Settings("fp32", "nchw", "reduce-overhead")
    model = one.at(one.dense, eager)
    step = one.step(model, eager)
    step()
    parameters, expected, _ = one.facts(model, eager, step)
    assert parameters == sum(weight.numel() for weight in model.parameters()) and expected
    gradients = [weight.grad for weight in model.parameters()]
    _, found, _ = one.facts(model, replayed, lambda: None)  # a replay allocates nothing
    assert found == pytest.approx(expected, rel=0.1)
    assert all(before is weight.grad for before, weight in zip(gradients, model.parameters(), strict=True))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("mode", CAPTURED)
def test_one_graph_has_the_whole_step(training: bool, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[Any] = []

    def graphed_step(model: Any, *_: Any, **options: Any) -> Any:
        captured.append(model)
        return lambda x, y: None

    monkeypatch.setattr(module, "graphed_step", graphed_step)
    monkeypatch.setattr(module, "graphed", lambda model, x: captured.append(model) or model)
    monkeypatch.setattr(module, "compiled", lambda model, mode: nn.Sequential(model))
    one, settings = subject(training), Settings("fp32", "nchw", mode)
    model = one.at(one.dense, settings)
    one.step(model, settings)()
    (found,) = captured
    assert found is model if mode == "graph" else found[0] is model


def test_a_step_takes_inputs_as_users_have_them() -> None:
    one, settings = subject(False), Settings("bf16", "nhwc", "eager")
    model = one.at(one.dense, settings)
    seen: list[torch.Tensor] = []
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    forward = one._callable(model, settings)
    found = forward(torch.randn(4, 1, 28, 28))
    one.step(model, settings)()
    assert found.dtype is torch.bfloat16 and all(x.dtype is torch.bfloat16 for x in seen) and len(seen) == 2
    assert one._callable(model, Settings("fp32", "nchw", "eager")) is model


def test_memory_is_unknown_where_a_copy_cannot_run() -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("out of memory")

    parameters, found, _ = subject(False).facts(Failing(), Settings("fp32", "nchw", "graph"), lambda: None)
    assert parameters == 3 and found is None

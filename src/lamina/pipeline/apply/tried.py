"""A network by a plan, with its step timed before and after."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lamina import measure, run
from lamina.build import Target
from lamina.errors import LaminaError, UsageError
from lamina.pipeline.apply.folder import save
from lamina.pipeline.apply.model import Applied, applied
from lamina.pipeline.convert import timer
from lamina.pipeline.deft.trained import pretrained
from lamina.record import Timing
from lamina.spec.plan import Plan


@dataclass(frozen=True)
class Tried:
    """What was done to a network, and its step before (eager mode, float32) and after, where they were timed."""

    model: nn.Module
    done: Applied
    before: Timing | None
    after: Timing | None


def try_plan(
    target: Target,
    plan: Plan,
    source: Path,
    *,
    weights: Path | None = None,
    classes: int | None = None,
    batch: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    strict: bool = False,
    timed: bool = True,
    output: Path | None = None,
) -> Tried:
    """Build a network, run it by a plan, time both, and save it.

    Args:
        target: the network.
        plan: of `study`.
        source: where the plan comes from: its folder may hold weights.
        weights: of the network; otherwise they are random.
        classes: of the network, if not its own.
        batch: samples of a step; those of the plan by default.
        seed: of random weights and inputs.
        device: to run on.
        strict: whether a layer that does not fit is an error.
        timed: whether to time a step before and after.
        output: folder to save the network in.

    Raises:
        UsageError: nothing of the plan fits, with ``strict`` any layer does not, or the weights are another network's.
    """
    at = measure.resolve(device)
    torch.manual_seed(seed)
    network = target.make(classes)
    if weights is not None:
        network = pretrained(network, weights)
    network = network.to(at).train(plan.goal == "train")
    inputs, *_ = target.example(batch or plan.batch, None, "fp32", at, "nchw", seed)
    run.size_lazy_parameters(network, tuple(inputs))
    dense = copy.deepcopy(network)
    model, done = applied(network, plan, example=tuple(inputs) if at.type == "cuda" else None, source=source)
    if strict and done.refused:
        raise UsageError("--strict: " + "; ".join(f"{name}: {reason}" for name, reason in done.refused.items()))
    before = after = None
    if timed:
        steps = {"before": _step(dense, inputs, plan), "after": _step(model, inputs, plan)}
        with run.precision_mode(plan.run.precision):
            times = timer(at, "eager")(steps)
        for time in times.values():
            if isinstance(time, Exception):
                raise LaminaError(f"{target.name}: a step by the plan failed: {run.one_line(time)}") from time
        before, after = (time if isinstance(time, Timing) else None for time in (times["before"], times["after"]))
    if output is not None:
        save(output, model, dense, plan, target, classes or target.classes)
    return Tried(model, done, before, after)


def _step(model: nn.Module, inputs: list[torch.Tensor], plan: Plan) -> Callable[[], object]:
    """A forward pass, or forward and backward of the mean square of the outputs."""

    def forward() -> Any:
        with torch.no_grad():
            return model(*inputs)

    def step() -> object:
        model.zero_grad(set_to_none=True)
        loss, _ = run.mean_square(model(*inputs), inputs[0], 0.0)
        loss.backward()
        return loss

    return step if plan.goal == "train" else forward

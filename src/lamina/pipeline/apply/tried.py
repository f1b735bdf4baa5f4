"""A network by a plan, with its step timed before and after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import nn

from lamina import build, measure, run
from lamina.build import Target
from lamina.errors import LaminaError, UsageError
from lamina.pipeline.apply.folder import save
from lamina.pipeline.apply.model import Applied, applied
from lamina.pipeline.convert import timer
from lamina.pipeline.deft.trained import pretrained
from lamina.record import Timing
from lamina.spec.plan import CAPTURED, Plan, Run


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
    notes: list[str] = []
    network = target.in_float32(classes, notes.append)
    if weights is not None:
        network = pretrained(network, weights)
    network = network.to(at).train(plan.goal == "train")
    inputs, *_ = target.example(batch or plan.batch, None, "fp32", at, "nchw", seed)
    run.size_lazy_parameters(network, tuple(inputs))
    dense = build.copied(network)
    model, done = applied(network, plan, example=tuple(inputs) if at.type == "cuda" else None, source=source)
    if strict and done.refused:
        raise UsageError("--strict: " + "; ".join(f"{name}: {reason}" for name, reason in done.refused.items()))
    done = replace(done, remarks=[*notes, *done.remarks])
    before = after = None
    if not done.replaced and plan.run == Run():
        done = replace(done, remarks=[*done.remarks, "the plan runs the network as it is: nothing to compare"])
    elif timed:
        before, after = _times(target.name, dense, model, inputs, plan, at)
    if output is not None:
        save(output, model, dense, plan, target, classes or target.classes)
    return Tried(model, done, before, after)


def _times(
    name: str, dense: nn.Module, model: nn.Module, inputs: list[torch.Tensor], plan: Plan, device: torch.device
) -> tuple[Timing, Timing]:
    """A step of both networks: of the dense one in eager mode and float32, of the other as the plan runs it."""
    training = plan.goal == "train"
    before = {"before": _step(dense, inputs, training, "fp32")}
    after = {"after": _step(model, inputs, training, plan.run.precision)}
    mode = plan.run.mode
    if training and mode in CAPTURED and device.type == "cuda":  # a user captures the step, not the model
        times = {**timer(device, "eager")(before), **timer(device, mode)(after)}
    else:
        times = {**timer(device, "eager")(before | after)}
    for time in times.values():
        if isinstance(time, Exception):
            raise LaminaError(f"{name}: a step by the plan failed: {run.one_line(time)}") from time
    return cast(tuple[Timing, Timing], (times["before"], times["after"]))


def _step(model: nn.Module, inputs: list[torch.Tensor], training: bool, precision: str) -> Callable[[], object]:
    """A forward pass, or the gradients of the mean square of the outputs."""
    trained = [one for one in model.parameters() if one.requires_grad]

    def step() -> object:
        with run.precision_mode(precision), torch.set_grad_enabled(training):
            outputs = model(*inputs)
            if not training:
                return outputs
            loss, _ = run.mean_square(outputs, inputs[0], 0.0)
            return torch.autograd.grad(loss, trained, allow_unused=True)

    return step

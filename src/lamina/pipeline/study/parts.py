"""A step in parts, each timed alone: the modules that compute it, and the update of the weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import nn

from lamina.accelerate.select import Selector, observe
from lamina.pipeline.graphed.step import make_capturable
from lamina.pipeline.study.layer_times import layer_times, quick
from lamina.pipeline.study.subject import Subject
from lamina.record import Timing
from lamina.record.study import Settings

UPDATE = "the update"

Parts = Mapping[str, float | None]
"""Microseconds of each part; ``None`` if it cannot be timed alone."""


def parts_us(subject: Subject, network: nn.Module, settings: Settings) -> dict[str, float | None]:
    """The innermost modules that the network calls at the settings, and in training the update.

    What several modules without parameters compute alike is timed once.
    """
    twin = copy.deepcopy(network)
    for module in twin.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]  # autograd refuses to overwrite inputs that it watches
    modules = {name: module for name, module in twin.named_modules() if name}
    timer = quick(subject, settings)
    with subject.context(settings):
        inputs = subject.inputs(settings)
        with torch.set_grad_enabled(subject.training):
            calls = observe(twin, modules, inputs if isinstance(inputs, tuple) else (inputs,))
        inner = [name for name in calls if not any(other.startswith(f"{name}.") for other in calls)]
        like = {name: _like(name, modules[name], calls[name].signature) for name in inner}
        firsts: dict[str, str] = {}
        for name, key in like.items():
            firsts.setdefault(key, name)
        times = layer_times(twin, firsts.values(), calls, timer)
        found = {name: times.get(firsts[like[name]]) for name in inner}
        found |= {name: 0.0 for name in inner if isinstance(modules[name], nn.Identity)}
        return found | ({UPDATE: _update_us(subject, twin, timer)} if subject.training else {})


def saved_us(before: Parts, after: Parts) -> tuple[float, float]:
    """Microseconds of all parts of a network, and how many of them another saves.

    What cannot be timed alone in one of them counts in neither.
    """
    unknown = {name for parts in (before, after) for name, time in parts.items() if time is None}
    whole, left = (sum(time or 0.0 for name, time in one.items() if name not in unknown) for one in (before, after))
    return whole, whole - left


def _like(name: str, module: nn.Module, signature: str) -> str:
    return name if any(True for _ in module.parameters()) else f"{module} on {signature}"


def _update_us(subject: Subject, model: nn.Module, timer: Selector) -> float | None:
    optimizer = subject.optimizer_of(model)
    if subject.device.type == "cuda":
        make_capturable(optimizer)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    timing = timer.timer({UPDATE: optimizer.step})[UPDATE]
    return timing.median_us if isinstance(timing, Timing) else None

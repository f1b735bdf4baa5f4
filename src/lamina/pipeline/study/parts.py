"""A step in parts, each timed alone: the modules that compute it, and the update of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from lamina import build
from lamina.accelerate.convert import put, units_of
from lamina.accelerate.methods.fusion import Fusion
from lamina.accelerate.select import Selector, compiled, observe
from lamina.pipeline.graphed.step import make_capturable
from lamina.pipeline.study.layer_times import layer_times, quick
from lamina.pipeline.study.subject import Subject
from lamina.record import Timing
from lamina.record.study import Settings
from lamina.spec.plan import COMPILED

UPDATE = "the update"

COMPILE_S = {False: 1.0, True: 3.0}
"""Seconds set aside for compiling a layer with its activation, to infer and to train."""

Parts = Mapping[str, float | None]
"""Microseconds of each part; ``None`` if it cannot be timed alone."""


Neighbours = Sequence[tuple[str, ...]]
"""Names of modules that the compiler fuses: a layer with its activation and pooling."""


def parts_us(
    subject: Subject, network: nn.Module, settings: Settings, fused: Neighbours = ()
) -> dict[str, float | None]:
    """The innermost modules that the network calls at the settings, and in training the update.

    What several modules without parameters compute alike is timed once. Neighbours are one part, by the name of the
    first: compiled.
    """
    twin = build.copied(network)
    united = unite(twin, fused)
    for module in twin.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]  # autograd refuses to overwrite inputs that it watches
    within = tuple(f"{unit}." for unit in united)
    modules = {name: module for name, module in twin.named_modules() if name and not name.startswith(within)}
    timer = quick(subject, settings)
    with subject.context(settings):
        inputs = subject.inputs(settings)
        with torch.set_grad_enabled(subject.training):
            calls = observe(twin, modules, inputs if isinstance(inputs, tuple) else (inputs,))
        inner = [name for name in calls if not any(other.startswith(f"{name}.") for other in calls)]
        empty = {name for name in inner if isinstance(modules[name], nn.Identity)}
        like = {name: _like(name, modules[name], calls[name].signature) for name in inner if name not in empty}
        firsts: dict[str, str] = {}
        for name, key in like.items():
            firsts.setdefault(key, name)
        for name in united:
            put(twin, name, compiled(modules[name], "compiled"))
        times = layer_times(twin, firsts.values(), calls, timer)
        found = {name: 0.0 if name in empty else times.get(firsts[like[name]]) for name in inner}
        return found | ({UPDATE: _update_us(subject, twin, timer)} if subject.training else {})


def neighbours(subject: Subject, dense: nn.Module, settings: Settings, left_s: float) -> Neighbours:
    """What the compiler fuses of the dense network, and of any plan of it; nothing where it does not run.

    Nothing either where compiling each takes longer than the seconds that are left, as on a CPU.
    """
    if subject.device.type != "cuda" or settings.mode not in COMPILED:
        return []
    found = units(dense)
    return found if 2 * len(found) * COMPILE_S[subject.training] <= left_s else []


def units(dense: nn.Module) -> Neighbours:
    """Each layer that is followed by an activation or pooling, with these."""
    found = units_of(dense, Fusion())
    return [one.names for one in found if one.refusal is None and one.stays is None and len(one.names) > 1]


def unite(network: nn.Module, fused: Neighbours) -> set[str]:
    """Put a Sequential in place of each first of neighbours, and identities in place of the others; the first names."""
    for first, *others in fused:
        put(network, first, nn.Sequential(*map(network.get_submodule, (first, *others))))
        for name in others:
            put(network, name, nn.Identity())
    return {names[0] for names in fused}


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

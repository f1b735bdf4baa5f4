"""Quick times of single layers: what is worth trying, and what a plan will take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import torch
from torch import nn

from lamina.accelerate.select import LayerCall, Selector, layer_step, observe
from lamina.pipeline.convert import selector
from lamina.pipeline.study.subject import Subject
from lamina.record import Timing
from lamina.record.study import Measured, Settings

ROUNDS = 3


def quick(subject: Subject, settings: Settings) -> Selector:
    """A selector that times layers in a few rounds, in the mode that layers of the settings are timed in."""
    return selector(subject.device, subject.layer_mode(settings), subject.training, rounds=ROUNDS)


def layer_times(
    model: nn.Module, names: Iterable[str], calls: Mapping[str, LayerCall], timer: Selector
) -> dict[str, float]:
    """The step of each layer that was called and runs alone, in microseconds: not yet a comparison."""
    steps: dict[str, Callable[[], object]] = {}
    for name in names:
        if name in calls:
            step = layer_step(model.get_submodule(name), calls[name], timer.mode, timer.training)
            with suppress(Exception):  # whatever a layer of the user's raises outside of its network
                step()
                steps[name] = step
    times = timer.timer(steps) if steps else {}
    return {name: time.median_us for name, time in times.items() if isinstance(time, Timing)}


def alone_us(
    subject: Subject, network: nn.Module, settings: Settings, kind: type[nn.Module] = nn.Module
) -> dict[str, float]:
    """The step of each layer of a kind that has weights, alone, of a network at some settings, in microseconds."""
    names = [
        name
        for name, one in network.named_modules()
        if isinstance(one, kind) and any(p.dim() > 1 for p in one.parameters(recurse=False))
    ]
    with subject.context(settings):
        inputs = subject.inputs(settings)
        with torch.set_grad_enabled(subject.training):
            calls = observe(network, names, inputs if isinstance(inputs, tuple) else (inputs,))
        return layer_times(network, names, calls, quick(subject, settings))


def part_of(subject: Subject, one: Measured, kind: type[nn.Module]) -> float:
    """The part of the network's step at some settings that layers of a kind take, each alone; 1 at most."""
    assert one.timing is not None
    model = subject.at(subject.start(one.settings), one.settings)
    return min(1.0, sum(alone_us(subject, model, one.settings, kind).values()) / one.timing.median_us)

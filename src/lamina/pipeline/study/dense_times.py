"""Quick times of the dense layers: what is worth trying."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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


def dense_times(
    model: nn.Module, names: Iterable[str], calls: Mapping[str, LayerCall], timer: Selector
) -> dict[str, float]:
    """The step of each layer that was called, in microseconds: not yet a comparison."""
    steps = {
        name: layer_step(model.get_submodule(name), calls[name], timer.mode, timer.training)
        for name in names
        if name in calls
    }
    times = timer.timer(steps) if steps else {}
    return {name: time.median_us for name, time in times.items() if isinstance(time, Timing)}


def part_of(subject: Subject, one: Measured, kind: type[nn.Module]) -> float:
    """The part of the network's step at some settings that layers of a kind take, each alone; 1 at most."""
    assert one.timing is not None
    model = subject.at(subject.start(one.settings), one.settings)
    names = [name for name, module in model.named_modules() if isinstance(module, kind)]
    with subject.context(one.settings):
        inputs = subject.inputs(one.settings)
        with torch.set_grad_enabled(subject.training):
            calls = observe(model, names, inputs if isinstance(inputs, tuple) else (inputs,))
        times = dense_times(model, names, calls, quick(subject, one.settings))
    return min(1.0, sum(times.values()) / one.timing.median_us)

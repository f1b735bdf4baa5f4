"""The network of a study at some settings, observed on an example: what its layers are called with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lamina.accelerate.select import LayerCall, Selector, observe
from lamina.pipeline.study.folded import fold_groups
from lamina.pipeline.study.subject import Subject
from lamina.record.study import Settings


@dataclass(frozen=True)
class Observed:
    """A network with what its layers are called with.

    Attributes:
        model: the network at the settings.
        settings: of the network.
        example: a batch of its inputs.
        calls: by name, the call of each layer that the example reached.
        chosen: times implementations, and keeps what it selected.
        groups: as `fold_groups` gives them.
    """

    model: nn.Module
    settings: Settings
    example: tuple[Tensor, ...]
    calls: Mapping[str, LayerCall]
    chosen: Selector
    groups: Mapping[str, int] | None


def observe_layers(
    subject: Subject, model: nn.Module, names: Collection[str], settings: Settings, chosen: Selector
) -> Observed:
    """Run a network once on a batch of calibration inputs, to see how its layers are called.

    Args:
        subject: has the inputs.
        model: the network at the settings.
        names: of the layers.
        settings: of the network.
        chosen: times implementations of these layers.
    """
    inputs = subject.inputs(settings)
    example = inputs if isinstance(inputs, tuple) else (inputs,)
    with torch.set_grad_enabled(subject.training):
        calls = observe(model, names, example)
    return Observed(model, settings, example, calls, chosen, fold_groups(model))


def density(call: LayerCall) -> float:
    """Of what a layer reads, the fraction that is not zero."""
    sizes = [one.numel() for one in call.tensors]
    return sum(int(one.count_nonzero()) for one in call.tensors) / max(1, sum(sizes))

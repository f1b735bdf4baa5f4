"""Equal parts of a network: what is measured of one holds for the others."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lamina.explain.predictions import Prediction
from lamina.pipeline.what_if.swaps import Part, Swapped
from lamina.record import Timing


@dataclass(frozen=True)
class Known:
    """What is measured at one point of a network.

    Attributes:
        parts: times of each phase of a part as it is, by its `signature`.
        swapped: what a replacement of a part did, by phase.
        steps: times of the whole step as it is, by clock.
        predictions: of parts by a cost model or the roofline.
    """

    parts: dict[Hashable, dict[str, Timing]] = field(default_factory=dict)
    swapped: dict[Hashable, dict[str, Swapped]] = field(default_factory=dict)
    steps: dict[str, Timing] = field(default_factory=dict)
    predictions: dict[Hashable, Prediction] = field(default_factory=dict)


def signature(part: Part) -> Hashable:
    """What decides the time of a part: its modules with their settings, and its tensors except for their values."""
    return module_signature(part.module), _laid_out(part.x)


def module_signature(module: nn.Module) -> Hashable:
    """Types and settings of a module and its submodules, and its tensors except for their values."""
    types = tuple(type(one) for one in module.modules())
    return types, repr(module), module.training, tuple(map(_laid_out, (*module.parameters(), *module.buffers())))


def _laid_out(x: Tensor) -> Hashable:
    strides = x.stride() if x.layout == torch.strided else None
    return tuple(x.shape), strides, x.dtype, x.device, x.requires_grad

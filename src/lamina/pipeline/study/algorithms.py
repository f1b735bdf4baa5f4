"""Convolution algorithms as candidates of layers: ``dense:fft`` against what the library selects."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from lamina.accelerate.convert import kept
from lamina.pipeline.algorithms import KINDS, refusal_of
from lamina.record.study import Settings
from lamina.spec import Method


def convolutions(model: nn.Module, method: Method, settings: Settings) -> Iterator[tuple[str, nn.Module, str | None]]:
    """Each convolution of a network with its name, and why it cannot have the algorithm at the settings, or nothing."""
    for name, module in model.named_modules():
        if type(module) in KINDS:
            yield name, module, _refusal(module, method, settings) or kept(model, name)


def _refusal(module: nn.Module, method: Method, settings: Settings) -> str | None:
    if settings.precision != "fp32" and method.algorithm != "space_to_depth":
        return f"in {settings.precision} the library's autotuning selects among its own algorithms: strict fp32 only"
    return refusal_of(module, method)

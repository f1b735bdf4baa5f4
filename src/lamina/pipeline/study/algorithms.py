"""Convolution algorithms as candidates of layers: ``dense:fft`` against what the library selects."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from lamina import build
from lamina.accelerate.convert import kept
from lamina.accelerate.select import DENSE, LayerCall, Selector
from lamina.errors import UnsupportedError
from lamina.pipeline.apply import describe_type
from lamina.record import Selection
from lamina.record.study import Settings
from lamina.spec import Method

KINDS = (nn.Conv1d, nn.Conv2d)


def convolutions(model: nn.Module, method: Method, settings: Settings) -> Iterator[tuple[str, nn.Module, str | None]]:
    """Each convolution of a network with its name, and why it cannot have the algorithm at the settings, or nothing."""
    for name, module in model.named_modules():
        if type(module) in KINDS:
            yield name, module, _refusal(module, method, settings) or kept(model, name)


def _refusal(module: nn.Module, method: Method, settings: Settings) -> str | None:
    if settings.precision != "fp32" and method.algorithm != "space_to_depth":
        return f"in {settings.precision} the library's autotuning selects among its own algorithms: strict fp32 only"
    try:
        build.by_algorithm(method, module)
    except UnsupportedError as error:
        return str(error).removeprefix(f"{method}: ")
    return None


def select_algorithm(module: nn.Module, method: Method, chosen: Selector, call: LayerCall | None) -> Selection:
    """Whether a convolution's step is faster by an algorithm than by the library.

    Raises:
        UnsupportedError: nothing reached the layer.
        UsageError: the layer does not run.
    """
    if call is None:
        raise UnsupportedError("the example did not reach it")
    new = build.by_algorithm(method, module)
    question = f"{describe_type(module)} as {method} on {call.signature}"
    return chosen.select(question, {DENSE: lambda: module, str(method): lambda: new}, call)

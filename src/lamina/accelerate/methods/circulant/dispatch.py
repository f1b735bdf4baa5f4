"""Selection of circulant implementations as version 0.1 had it; use ``lamina.convert(..., select="measure")``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lamina.accelerate.methods.circulant.candidates import candidates
from lamina.accelerate.methods.circulant.nn import LAYERS
from lamina.accelerate.select import Cache, Selector, observe, one_by_one
from lamina.record import Selection

Timer = Callable[[Callable[[], object]], float]


class Dispatcher:
    """Deprecated: times callables by ``timer``, in microseconds, and keeps selections in ``folder``."""

    def __init__(self, folder: Path, timer: Timer, provenance: Mapping[str, str]) -> None:
        warnings.warn("Dispatcher is deprecated: use lamina.convert(..., select='measure')", DeprecationWarning, 2)
        self.selector = Selector(one_by_one(timer), Cache(folder, provenance), "eager", training=True)


def calibrate(layer: Any, x: Tensor, dispatcher: Dispatcher) -> Selection:
    """Deprecated: set a circulant layer's ``impl`` to the fastest for inputs like ``x``."""
    return _calibrated(layer, observe(nn.Sequential(layer), ["0"], x)["0"], dispatcher)


def calibrate_model(model: nn.Module, x: Tensor, dispatcher: Dispatcher) -> dict[str, Selection]:
    """Deprecated: `calibrate` every circulant layer of a model for what reaches it when ``x`` goes in."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LAYERS)}
    calls = observe(model, layers, x)
    return {name: _calibrated(layers[name], call, dispatcher) for name, call in calls.items()}


def _calibrated(layer: Any, call: Any, dispatcher: Dispatcher) -> Selection:
    layer.impl = "auto"
    made = candidates(layer, call, dispatcher.selector)
    question = f"{type(layer).__name__}({layer.extra_repr()}) on {call.signature}"
    selection = dispatcher.selector.select(question, made, call)
    layer.impl, layer.fallback = made[selection.impl]().impl, True
    return selection

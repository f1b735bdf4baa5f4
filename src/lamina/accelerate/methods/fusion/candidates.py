"""The implementations of a fused layer that a selection compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from lamina.accelerate.common.operands import has_kernels
from lamina.accelerate.methods.fusion.config import Impl
from lamina.accelerate.methods.fusion.cost import times_us
from lamina.accelerate.methods.fusion.nn import FusedLinear
from lamina.accelerate.select import DENSE, LayerCall, Selector, variant
from lamina.accelerate.select.cost import CostModel, Prediction, Predictions
from lamina.errors import UnsupportedError


def candidates(layer: Any, call: LayerCall, selector: Selector) -> Mapping[str, Callable[[], nn.Module]]:
    """Every implementation that can run on the call's device; the requested one alone if it is not ``auto``."""
    return {f"impl={impl}": partial(variant, layer, impl=impl) for impl in _impls(layer, call)}


def predictions(dense: Any, layer: Any, call: LayerCall, model: CostModel) -> Predictions:
    """The separate operators and the candidates that have a cost model, with their predicted times.

    Raises:
        UnsupportedError: there is no cost model for the layer, the requested implementation, or training.
    """
    if model.training:
        raise UnsupportedError("the cost model of fusion is for inference: select with training=False")
    times = times_us(dense, layer, call, model) if has_kernels(call.tensors[0]) else {}
    found = {}
    for impl in _impls(layer, call):
        if impl not in times:
            raise UnsupportedError(f"no cost model for impl={impl} on {call.tensors[0].device.type}")
        found[f"impl={impl}"] = Prediction(times[impl], partial(variant, layer, impl=impl))
    return {DENSE: Prediction(times[DENSE], lambda: dense)} | found


def _impls(layer: Any, call: LayerCall) -> tuple[Impl, ...]:
    if layer.impl != "auto":
        return (layer.impl,)
    if not has_kernels(call.tensors[0]):
        return ("reference",)
    return ("kernel", "cublaslt") if isinstance(layer, FusedLinear) else ("kernel",)

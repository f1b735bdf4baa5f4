"""The implementations of a weight-only quantized layer that a selection compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from lamina.accelerate.common.operands import has_kernels
from lamina.accelerate.methods.weight_only.config import Impl
from lamina.accelerate.methods.weight_only.cost import BITS, H200, stored_us
from lamina.accelerate.methods.weight_only.nn import WeightOnlyLinear
from lamina.accelerate.select import DENSE, LayerCall, Selector, variant
from lamina.accelerate.select.cost import CostModel, Launch, Prediction, Predictions, gemm, precision_of
from lamina.errors import UnsupportedError


def candidates(layer: Any, call: LayerCall, selector: Selector) -> Mapping[str, Callable[[], nn.Module]]:
    """Every implementation that can run on the call's device; the requested one alone if it is not ``auto``.

    Raises:
        UnsupportedError: the selection is for training, in which stored weights have no gradient.
    """
    _refuse_training(selector.training)
    impls = _impls(layer, has_kernels(call.tensors[0]))
    return {f"impl={impl}": partial(variant, layer, impl=impl) for impl in impls}


def predictions(dense: nn.Module, layer: Any, call: LayerCall, model: CostModel) -> Predictions:
    """The dense layer and the candidates, with their predicted times.

    Raises:
        UnsupportedError: the selection is for training, or there is no cost model for the layer.
    """
    _refuse_training(model.training)
    times = times_us(dense, layer.format, call, model)
    impls = _impls(layer, has_kernels(call.tensors[0]))
    return {DENSE: Prediction(times[DENSE], lambda: dense)} | {
        f"impl={impl}": Prediction(times[impl], partial(variant, layer, impl=impl)) for impl in impls
    }


def times_us(dense: nn.Module, format: str, call: LayerCall, model: CostModel) -> dict[str, float]:
    """Predicted microseconds of a forward pass by implementation, the dense layer's under ``dense``.

    ``reference`` writes and reads the dequantized weights in front of the dense layer.

    Raises:
        UnsupportedError: there is no cost model for the layer.
    """
    sizes, precision = gemm(dense, call), precision_of(call)
    plain = sizes.launches(training=False)
    # Two passes over the weights: from the format to float32 and its scale, and to the layer's dtype.
    dequantized = model.time_us([*plain, *[Launch(sizes.weights * (4 + sizes.itemsize))] * 2], precision)
    found = {DENSE: model.time_us(plain, precision), "reference": dequantized}
    if isinstance(dense, nn.Linear):
        # Float32 operands are multiplied in TF32 with correction terms.
        rate = model.roofs.gemm_gflops.get("tf32" if precision == "fp32" else precision)
        rates = replace(
            H200, read_gbs=model.roofs.read_gbs, product_gflops=rate or min(model.roofs.gemm_gflops.values())
        )
        bits = 8 * sizes.itemsize
        kernel = stored_us(sizes.rows, sizes.outputs, sizes.summed, BITS.get(format, 8), rates, bits)
        found["kernel"] = kernel
    return found


def _impls(layer: Any, kernels: bool) -> tuple[Impl, ...]:
    if layer.impl != "auto":
        return (layer.impl,)
    return ("kernel", "reference") if kernels and isinstance(layer, WeightOnlyLinear) else ("reference",)


def _refuse_training(training: bool) -> None:
    if training:
        raise UnsupportedError("weight-only layers do not train their weights: select for inference (training=False)")

"""The cost model of fusion: a roofline in which each operator behind a product passes over memory once more."""

from __future__ import annotations

from math import prod
from typing import Any

from torch import nn

from lamina.accelerate.methods.fusion.nn import FusedConv2d
from lamina.accelerate.select import DENSE, LayerCall
from lamina.accelerate.select.cost import CostModel, Launch, gemm, precision_of

TF32_PRODUCTS = 3
"""TF32 products that give a float32 kernel its accuracy (3xTF32)."""


def times_us(dense: nn.Sequential, layer: Any, call: LayerCall, model: CostModel) -> dict[str, float]:
    """Predicted microseconds of a forward pass by implementation, the separate operators' under ``dense``.

    Args:
        dense: a linear layer and its activation, or a convolution, its ReLU and perhaps its pooling.
        layer: the fused layer.
        call: the inputs.
        model: of the machine.

    Raises:
        UnsupportedError: there is no cost model for the layer.
    """
    sizes, precision = gemm(dense[0], call), precision_of(call)
    product, *casts = sizes.launches(training=False)
    result = sizes.y * sizes.itemsize
    if not isinstance(layer, FusedConv2d):
        whole = [product, *casts]
        exact = TF32_PRODUCTS if precision == "fp32" else 1
        kernel = product._replace(flops=product.flops * exact, precision="tf32" if precision == "fp32" else "")
        return {
            DENSE: model.time_us([*whole, Launch(2 * result)], precision),
            "kernel": model.time_us([kernel, *casts], precision),
            "cublaslt": model.time_us(whole, precision),
        }
    pooled = result if layer.pool is None else result / prod(layer.pool.stride)
    separate = [Launch(2 * result)] * (1 if layer.bias is None else 2)  # the bias, then ReLU
    separate += [] if layer.pool is None else [Launch(result + pooled)]
    return {
        DENSE: model.time_us([product, *casts, *separate], precision),
        "kernel": model.time_us([product, *casts, Launch(result + pooled)], precision),
    }

"""The implementations of a weight-only quantized layer that a selection compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from lamina.accelerate.common.operands import has_kernels
from lamina.accelerate.methods.weight_only.config import Impl
from lamina.accelerate.methods.weight_only.nn import WeightOnlyLinear
from lamina.accelerate.select import LayerCall, Selector, variant
from lamina.errors import UnsupportedError


def candidates(layer: Any, call: LayerCall, selector: Selector) -> Mapping[str, Callable[[], nn.Module]]:
    """Every implementation that can run on the call's device; the requested one alone if it is not ``auto``.

    Raises:
        UnsupportedError: the selection is for training, in which stored weights have no gradient.
    """
    if selector.training:
        raise UnsupportedError("weight-only layers do not train their weights: select for inference (training=False)")
    impls: tuple[Impl, ...] = (layer.impl,)
    if layer.impl == "auto":
        kernel = isinstance(layer, WeightOnlyLinear) and has_kernels(call.tensors[0])
        impls = ("kernel", "reference") if kernel else ("reference",)
    return {f"impl={impl}": partial(variant, layer, impl=impl) for impl in impls}

"""The implementations of a fused layer that a selection compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from lamina.accelerate.common.operands import has_kernels
from lamina.accelerate.methods.fusion.config import Impl
from lamina.accelerate.methods.fusion.nn import FusedLinear
from lamina.accelerate.select import LayerCall, Selector, variant


def candidates(layer: Any, call: LayerCall, selector: Selector) -> Mapping[str, Callable[[], nn.Module]]:
    """Every implementation that can run on the call's device; the requested one alone if it is not ``auto``."""
    impls: tuple[Impl, ...] = (layer.impl,)
    if layer.impl == "auto":
        impls = ("reference",)
        if has_kernels(call.tensors[0]):
            impls = ("kernel", "cublaslt") if isinstance(layer, FusedLinear) else ("kernel",)
    return {f"impl={impl}": partial(variant, layer, impl=impl) for impl in impls}

"""The implementations of a block-circulant layer that a selection compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from lamina.accelerate.common.operands import has_kernels
from lamina.accelerate.methods.circulant.config import Impl
from lamina.accelerate.select import LayerCall, Selector, variant

_GPU: tuple[Impl, ...] = ("kernel", "materialized", "dense")
_ELSEWHERE: tuple[Impl, ...] = ("reference", "dense")


def candidates(layer: Any, call: LayerCall, selector: Selector) -> Mapping[str, Callable[[], nn.Module]]:
    """Every implementation that can run on the call's device; the requested one alone if it is not ``auto``."""
    impls = (layer.impl,) if layer.impl != "auto" else _GPU if has_kernels(call.tensors[0]) else _ELSEWHERE
    return {f"impl={impl}": partial(variant, layer, impl=impl) for impl in impls}

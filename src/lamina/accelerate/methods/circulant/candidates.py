"""The implementations of a block-circulant layer that a selection compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lamina.accelerate.common.operands import has_kernels
from lamina.accelerate.methods.circulant.config import Impl
from lamina.accelerate.methods.circulant.cost import times_us
from lamina.accelerate.methods.circulant.nn import BlockCirculantConv1d, BlockCirculantConv2d, BlockCirculantLinear
from lamina.accelerate.select import DENSE, LayerCall, Lighter, Selector, layer_step, variant
from lamina.accelerate.select.cost import CostModel, Prediction, Predictions
from lamina.errors import UnsupportedError

_GPU: tuple[Impl, ...] = ("kernel", "materialized", "dense")
_ELSEWHERE: tuple[Impl, ...] = ("reference", "dense")
_MIN_ROWS, _DTYPES, _BLOCK_SIZES = 1000, (torch.bfloat16, torch.float16, torch.float32), (16, 32, 64, 128)
"""Where the fused kernels are tried; what else they refuse, they refuse when they are called."""

_AGREEMENT = 0.03
"""Relative distance of two results in a 16-bit dtype or in TF32."""


def candidates(layer: Any, call: LayerCall, selector: Selector) -> Mapping[str, Callable[[], nn.Module]]:
    """Every implementation that can run on the call's device; a requested one alone.

    What is selected for these inputs must not refuse others, such as a last batch of few rows.
    """
    requested = layer.impl != "auto" and not layer.fallback  # with a fallback, it was selected for other inputs
    impls = (layer.impl,) if requested else _GPU if has_kernels(call.tensors[0]) else _ELSEWHERE
    found: dict[str, Callable[[], nn.Module]] = {
        f"impl={impl}": partial(variant, layer, impl=impl, fallback=not requested) for impl in impls
    }
    if impls is _GPU and _has_many_rows(layer, call):
        # Made to be timed, and again if it is selected, but compared once.
        found["impl=fused_rows"] = Lighter(
            cache(lambda: agreeing(layer, call, selector.training, "fused_rows", "kernel"))
        )
    return found


def agreeing(layer: Any, call: LayerCall, training: bool, impl: Impl, like: Impl) -> nn.Module:
    """The layer by an implementation, after it computed what another one does: outputs and, in training, gradients.

    Raises:
        UnsupportedError: it computed something else.
    """
    steps = sorted({False, training})  # a training step returns gradients only
    both = (variant(layer, impl=one, fallback=False) for one in (impl, like))
    ours, theirs = (
        tree_leaves([layer_step(one, call, "eager", backward)() for backward in steps]) for one in both
    )  # fmt: skip
    for mine, wanted in zip(ours, theirs, strict=True):
        if isinstance(wanted, Tensor):
            error = (mine.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30)
            if not error <= _AGREEMENT:
                raise UnsupportedError(f"impl={impl} differs from impl={like} by {float(error):.1e}")
    return variant(layer, impl=impl, fallback=True)


def _has_many_rows(layer: Any, call: LayerCall) -> bool:
    """Whether it is a linear layer or a pointwise convolution of many rows, in a 16-bit dtype or in TF32."""
    x = call.tensors[0]
    dtype = call.autocast or x.dtype
    if dtype not in _DTYPES or layer.block_size not in _BLOCK_SIZES:
        return False
    if dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32":
        return False
    match layer:
        case BlockCirculantLinear():
            return x.numel() >= _MIN_ROWS * layer.in_features
        case BlockCirculantConv1d() | BlockCirculantConv2d():
            plain = set(layer.kernel_size + layer.stride) == {1} and layer.groups == 1
            return plain and x.numel() >= _MIN_ROWS * layer.in_channels
        case _:
            return False


def predictions(dense: nn.Module, layer: Any, call: LayerCall, model: CostModel) -> Predictions:
    """The dense layer and the candidates that have a cost model, with their predicted times.

    Raises:
        UnsupportedError: there is no cost model for the layer, or for the requested implementation.
    """
    if not has_kernels(call.tensors[0]):
        raise UnsupportedError(f"no cost model for impl=reference, which runs on {call.tensors[0].device.type}")
    times = times_us(dense, layer.block_size, call, model)
    found = {DENSE: Prediction(times.pop(DENSE), lambda: dense)}
    for impl in (layer.impl,) if layer.impl != "auto" else times:
        if impl not in times:
            raise UnsupportedError(f"no cost model for impl={impl}")
        found[f"impl={impl}"] = Prediction(times[impl], partial(variant, layer, impl=impl))
    return found

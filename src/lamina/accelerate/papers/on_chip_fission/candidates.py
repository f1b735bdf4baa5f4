"""The implementation of an on-chip fission layer that a selection compares with the dense one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from lamina.accelerate.papers.on_chip_fission.cost import predict
from lamina.accelerate.papers.on_chip_fission.functional import resolve_impl
from lamina.accelerate.select import DENSE, LayerCall, Selector, variant
from lamina.accelerate.select.cost import CostModel, Prediction, Predictions, gemm, precision_of
from lamina.errors import UnsupportedError


def candidates(layer: Any, call: LayerCall, selector: Selector) -> Mapping[str, Callable[[], nn.Module]]:
    """The requested implementation, or the one of the call's device."""
    impl = resolve_impl(layer.impl, call.tensors[0])
    return {f"impl={impl}": partial(variant, layer, impl=impl)}


def predictions(dense: nn.Module, layer: Any, call: LayerCall, model: CostModel) -> Predictions:
    """The dense layer and the kernel, with their predicted times.

    Raises:
        UnsupportedError: the selection is for training, or there is no cost model for the layer.
    """
    if model.training:
        raise UnsupportedError("no cost model for training: gradients run in the vendor library")
    impl = resolve_impl(layer.impl, call.tensors[0])
    if impl != "kernel":
        raise UnsupportedError(f"no cost model for impl={impl}, which runs on {call.tensors[0].device.type}")
    sizes = gemm(dense, call)
    time = predict(
        sizes.outputs, sizes.rows, layer.weight[0].numel(), layer.tile, layer.format,
        windows=not isinstance(dense, nn.Linear),
    ).us  # fmt: skip
    return {
        DENSE: Prediction(model.time_us(sizes.launches(training=False), precision_of(call)), lambda: dense),
        "impl=kernel": Prediction(time, partial(variant, layer, impl="kernel")),
    }

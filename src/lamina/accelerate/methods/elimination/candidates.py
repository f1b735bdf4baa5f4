"""The implementations and tiles of a layer with pruned inputs that a selection compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from math import log2
from typing import Any

import torch
from torch import Tensor, nn

from lamina.accelerate.common.operands import has_kernels
from lamina.accelerate.methods.elimination.cost import times_us
from lamina.accelerate.methods.elimination.functional import MIN_RUN_BYTES
from lamina.accelerate.methods.elimination.nn import (
    EliminatedConv1d,
    EliminatedConv2d,
    EliminatedLinear,
    EliminatedLSTM,
)
from lamina.accelerate.methods.elimination.tiles import Tile, tf32x3
from lamina.accelerate.methods.elimination.tiles import candidates as tiles_of
from lamina.accelerate.select import DENSE, LayerCall, Selector, variant
from lamina.accelerate.select.cost import CostModel, Prediction, Predictions
from lamina.errors import UnsupportedError


def candidates(layer: Any, call: LayerCall, selector: Selector) -> Mapping[str, Callable[[], nn.Module]]:
    """Every implementation that can be the fastest, with tiles where it has any: those nearest to the one by sizes."""
    x = call.tensors[0]
    if isinstance(layer, EliminatedLSTM):
        return {"impl=gather": lambda: layer}
    found: dict[str, Callable[[], nn.Module]] = {}
    for impl in (layer.impl,) if layer.impl != "auto" else implementations(layer, x):
        if impl == "kernel" or (impl == "pack" and not isinstance(layer, EliminatedLinear)):
            rows, outputs, summed = sizes(layer, x)
            tiles = tiles_of(rows, outputs, summed, x.itemsize, isinstance(layer, EliminatedLinear), tf32x3(x))
            for tile in nearest_first(tiles)[: selector.max_tiles]:
                packed = tuple(tile.pack())
                found[f"impl={impl},tile={'x'.join(map(str, packed))}"] = partial(
                    variant, layer, impl=impl, tile=packed
                )
        else:
            found[f"impl={impl}"] = partial(variant, layer, impl=impl, tile=())
    return found


def predictions(dense: Any, layer: Any, call: LayerCall, model: CostModel) -> Predictions:
    """The dense layer and every implementation, with their predicted times; tiles are those chosen by sizes.

    Raises:
        UnsupportedError: there is no cost model for the layer.
    """
    if isinstance(layer, EliminatedLSTM):
        raise UnsupportedError("no cost model for LSTM")
    times = times_us(dense, layer.weight[0].numel() / dense.weight[0].numel(), call, model)
    found = {DENSE: Prediction(times[DENSE], lambda: dense)}
    for impl in (layer.impl,) if layer.impl != "auto" else implementations(layer, call.tensors[0]):
        if impl not in times:
            raise UnsupportedError(f"no cost model for impl={impl}")
        found[f"impl={impl}"] = Prediction(times[impl], partial(variant, layer, impl=impl, tile=()))
    return found


def implementations(layer: Any, x: Tensor) -> tuple[str, ...]:
    """Implementations that can be the fastest on inputs like ``x``: not those that another one contains."""
    kernels = has_kernels(x)
    library = ("slice", "gather") if layer.at.prefix else ("gather",)
    if layer.at.whole:
        library = ("slice",)
    if not kernels:
        return library
    if isinstance(layer, EliminatedLinear):
        return (*library, "kernel") if layer.at.prefix else (*library, "pack", "kernel")
    if layer.at.by == "tap":
        return (*library, "kernel")
    channels_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    wide = layer.at.prefix or layer.at.run * x.itemsize >= MIN_RUN_BYTES
    packed = () if channels_last and layer.at.prefix else ("pack",)
    return (*library, *packed, *(("kernel",) if channels_last and wide else ()))


def sizes(layer: EliminatedLinear | EliminatedConv1d | EliminatedConv2d, x: Tensor) -> tuple[int, int, int]:
    """``M, N, K`` of a layer's GEMM."""
    outputs, summed = layer.weight.shape[0], layer.weight[0].numel()
    if isinstance(layer, EliminatedLinear):
        return x.shape[:-1].numel(), outputs, summed
    y = layer.dense(
        layer.in_channels, 1, layer.kernel_size, layer.stride, layer.padding, layer.dilation, device="meta"
    )(x.new_empty(x.shape, device="meta", dtype=torch.float32))  # fmt: skip
    return y.numel(), outputs, summed


def nearest_first(tiles: Sequence[Tile]) -> list[Tile]:
    """Tiles in the order of their distance from the first."""
    first = astuple(tiles[0])

    def distance(tile: Tile) -> float:
        return sum(abs(log2(a / b)) for a, b in zip(astuple(tile)[:4], first[:4], strict=True))

    return sorted(tiles, key=distance)

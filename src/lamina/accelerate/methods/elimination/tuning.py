"""Tile search for one layer, and the selection of version 0.1, which `lamina.accelerate.tune` replaces."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lamina.accelerate.methods.elimination.candidates import candidates, nearest_first, sizes
from lamina.accelerate.methods.elimination.config import Impl
from lamina.accelerate.methods.elimination.nn import EliminatedConv1d, EliminatedConv2d, EliminatedLinear
from lamina.accelerate.methods.elimination.tiles import Tile, tf32x3
from lamina.accelerate.methods.elimination.tiles import candidates as tiles_of
from lamina.accelerate.select import DENSE, Cache, Selector, observe, one_by_one
from lamina.errors import UnsupportedError, UsageError
from lamina.record import Selection

Timer = Callable[[Callable[[], object]], float]
"""The time of one call, in any unit."""

Layer = EliminatedLinear | EliminatedConv1d | EliminatedConv2d


@torch.no_grad()
def tune(
    layer: Layer, x: Tensor, timer: Timer, max_tiles: int | None = None, impl: Impl = "kernel"
) -> dict[Tile, float]:
    """Time tiles of a kernel and leave the fastest in ``layer.tile``.

    Args:
        layer: runs ``impl`` meanwhile.
        x: an input with the shape, dtype, layout and device to tune for.
        timer: is called with the layer's forward pass.
        max_tiles: how many tiles to time, those nearest to the untuned one; all candidates by default.
        impl: ``kernel``, or ``pack``, which packs the remaining inputs before it.

    Returns:
        The time of each tile; those that do not fit into shared memory are left out.

    Raises:
        UsageError: the layer is of another type, or no tile could run.
    """
    if not isinstance(layer, Layer):
        raise UsageError(f"expected an eliminated Linear, Conv1d or Conv2d, got {type(layer).__name__}")
    before = layer.impl, layer.tile
    layer.impl = impl
    times: dict[Tile, float] = {}
    rows, outputs, summed = sizes(layer, x)
    tiles = tiles_of(rows, outputs, summed, x.itemsize, isinstance(layer, EliminatedLinear), tf32x3(x))
    for tile in nearest_first(tiles)[:max_tiles]:
        layer.tile = tuple(tile.pack())
        try:
            times[tile] = timer(lambda: layer(x))
        except UnsupportedError:
            continue
    layer.impl, layer.tile = before
    if not times:
        raise UsageError("expected a tile that fits the device, got none: use impl='gather'")
    layer.tile = tuple(min(times, key=lambda tile: times[tile]).pack())
    return times


def fastest(layer: Any, x: Tensor, timer: Timer) -> tuple[nn.Module, Selection]:
    """Deprecated: an eliminated layer in its fastest implementation, or the dense layer that computes the same."""
    warnings.warn("fastest is deprecated: use lamina.accelerate.tune", DeprecationWarning, stacklevel=2)
    if not isinstance(layer, Layer):
        raise UsageError(f"expected an eliminated Linear, Conv1d or Conv2d, got {type(layer).__name__}")
    return _selected(layer, x, timer)


def tune_network(model: nn.Module, x: Tensor, timer: Timer) -> dict[str, Selection]:
    """Deprecated: `fastest` for every eliminated layer of a network, in place."""
    warnings.warn("tune_network is deprecated: use lamina.accelerate.tune", DeprecationWarning, stacklevel=2)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Layer) and name}
    with torch.no_grad():
        calls = observe(model, layers, x)
    found: dict[str, Selection] = {}
    for name, call in calls.items():
        new, found[name] = _selected(layers[name], call.tensors[0], timer)
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, new)
    return found


def _selected(layer: Any, x: Tensor, timer: Timer) -> tuple[nn.Module, Selection]:
    selector = Selector(one_by_one(timer), Cache(None, {}), "eager", training=False)
    with torch.no_grad():
        call = observe(nn.Sequential(layer), ["0"], x)["0"]
    made = {DENSE: layer.to_dense, **candidates(layer, call, selector)}
    selection = selector.select("layer", made, call)
    return made[selection.impl](), selection

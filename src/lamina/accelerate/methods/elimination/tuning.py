"""The kernel's tile, or the way a layer is computed, by measurement: on inputs of one size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from math import log2
from typing import Any

import torch
from torch import Tensor, nn

from lamina.accelerate.methods.elimination.config import Impl
from lamina.accelerate.methods.elimination.functional import MIN_RUN_BYTES
from lamina.accelerate.methods.elimination.nn import EliminatedConv1d, EliminatedConv2d, EliminatedLinear
from lamina.accelerate.methods.elimination.tiles import Tile, candidates, thrice
from lamina.errors import MissingError, UnsupportedError, UsageError

Timer = Callable[[Callable[[], object]], float]
"""The time of one call, in any unit."""

Way = tuple[str, tuple[int, ...]]
"""An implementation and its tile, which is empty where there is none."""

DENSE = "dense"
"""The way that needs no implementation of ours."""

Layer = EliminatedLinear | EliminatedConv1d | EliminatedConv2d

TRIED = (nn.Linear, nn.Conv1d, nn.Conv2d, EliminatedLinear, EliminatedConv1d, EliminatedConv2d)
"""Kinds of layers that have more than one way."""


@torch.no_grad()
def tune(
    layer: EliminatedLinear | EliminatedConv1d | EliminatedConv2d,
    x: Tensor,
    timer: Timer,
    most: int | None = None,
    impl: Impl = "kernel",
) -> dict[Tile, float]:
    """Time tiles of the kernel and leave the fastest in ``layer.tile``.

    Args:
        layer: computed by ``impl`` meanwhile.
        x: an input of the size, type, layout and device to tune for.
        timer: called with the layer's forward pass.
        most: how many tiles to time, those most like the untimed choice; all candidates, if left out.
        impl: the kernel, or a pack before it.

    Returns:
        The time of each tile; one that the device has no room for is not among them.

    Raises:
        UsageError: the layer is of another kind, or no tile could run.
    """
    if not isinstance(layer, EliminatedLinear | EliminatedConv1d | EliminatedConv2d):
        raise UsageError(f"expected an eliminated Linear, Conv1d or Conv2d, got {type(layer).__name__}")
    before = layer.impl, layer.tile
    layer.impl = impl
    times = _timed(layer, x, timer, most)
    layer.impl, layer.tile = before
    if not times:
        raise UsageError("expected a tile that the device has room for, got none: use impl='gather'")
    layer.tile = tuple(min(times, key=lambda tile: times[tile]).pack())
    return times


def _timed(layer: Layer, x: Tensor, timer: Timer, most: int | None) -> dict[Tile, float]:
    times: dict[Tile, float] = {}
    rows, outputs, summed = sizes(layer, x)
    tiles = candidates(rows, outputs, summed, x.itemsize, isinstance(layer, EliminatedLinear), thrice(x))
    for tile in nearest_first(tiles)[:most]:
        layer.tile = tuple(tile.pack())
        try:
            times[tile] = timer(lambda: layer(x))
        except UnsupportedError:
            continue
    return times


@torch.no_grad()
def fastest(layer: nn.Module, x: Tensor, timer: Timer, most: int | None = None) -> tuple[nn.Module, dict[Way, float]]:
    """Time every way to compute a layer, and give it back as it is the fastest.

    Args:
        layer: linear or a convolution, dense or eliminated. A dense one is tried by the kernel on all its inputs.
        x: an input of the size, type, layout and device to tune for.
        timer: called with a forward pass.
        most: tiles to time for each way that has any; all candidates, if left out.

    Returns:
        The layer with the fastest way and tile, or the dense layer where none beats that; and all times.

    Raises:
        UsageError: the layer is of another kind.
    """
    tried, dense = _both(layer)
    times: dict[Way, float] = {(DENSE, ()): timer(lambda: dense(x))}
    for impl in _worth_trying(tried, x):
        tried.impl, tried.tile = impl, ()
        try:
            if impl == "kernel" or (impl == "pack" and not isinstance(tried, EliminatedLinear)):
                tiles = _timed(tried, x, timer, most)
                times |= {(impl, tuple(tile.pack())): time for tile, time in tiles.items()}
            else:
                times[impl, ()] = timer(lambda: tried(x))
        except (UnsupportedError, MissingError):
            continue
    best = min(times, key=lambda way: times[way])
    if best[0] == DENSE:
        return dense, times
    tried.impl, tried.tile = best
    return tried, times


def _worth_trying(layer: Layer, x: Tensor) -> tuple[str, ...]:
    """Ways that are not those of the dense layer, nor a table's scattered loads where a pack makes them wide."""
    library = () if layer.at.whole else ("slice", "gather")
    if isinstance(layer, EliminatedLinear):
        return (*library, "kernel") if layer.at.prefix else (*library, "pack", "kernel")
    if layer.at.by == "tap":
        return (*library, "kernel")
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    wide = layer.at.prefix or layer.at.run * x.itemsize >= MIN_RUN_BYTES
    return (*library, *(("pack",) if not (last and layer.at.prefix) else ()), *(("kernel",) if last and wide else ()))


def _both(layer: Any) -> tuple[Any, nn.Module]:
    """An eliminated layer and the dense one that computes the same."""
    if isinstance(layer, EliminatedLinear | EliminatedConv1d | EliminatedConv2d):
        twin: Any = layer.to_dense()
        return layer, twin.to(memory_format=layout(layer.weight))
    kind = {nn.Linear: EliminatedLinear, nn.Conv1d: EliminatedConv1d, nn.Conv2d: EliminatedConv2d}.get(type(layer))
    if kind is None or getattr(layer, "groups", 1) > 1:
        raise UsageError(f"expected a linear layer or a convolution in one group, got {type(layer).__name__}")
    made: Any = kind
    return made.from_dense(layer, range(layer.weight.shape[1])).to(memory_format=layout(layer.weight)), layer


def layout(weight: Tensor) -> torch.memory_format:
    """Of the images that a convolution with this weight is meant for."""
    last = weight.dim() == 4 and weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format


@torch.no_grad()
def tune_network(model: nn.Module, x: Tensor, timer: Timer, most: int | None = None) -> dict[str, Way]:
    """Let every linear layer and convolution of a network compute the way that is the fastest for it, in place.

    Args:
        model: on the device, in the type and layout to tune for. Layers that are called more than once, or in groups,
            or that hooks watch, stay as they are.
        x: an input.
        timer: called with a layer's forward pass.
        most: as `fastest` takes it.

    Returns:
        The way of each layer that was tried, by its name.
    """
    seen: dict[str, list[Tensor]] = {}
    handles = [
        module.register_forward_pre_hook(lambda _, inputs, name=name: seen.setdefault(name, []).append(inputs[0]))
        for name, module in model.named_modules()
        if name and type(module) in TRIED and getattr(module, "groups", 1) == 1 and not module._forward_hooks
        and not module._forward_pre_hooks
    ]  # fmt: skip
    try:
        model(x)
    finally:
        for handle in handles:
            handle.remove()
    chosen: dict[str, Way] = {}
    for name, inputs in seen.items():
        if len(inputs) > 1:
            continue
        layer, times = fastest(model.get_submodule(name), inputs[0], timer, most)
        chosen[name] = min(times, key=lambda way: times[way])
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, layer)
    return chosen


def sizes(layer: EliminatedLinear | EliminatedConv1d | EliminatedConv2d, x: Tensor) -> tuple[int, int, int]:
    """Rows, columns and summed elements of a layer's product."""
    outputs, summed = layer.weight.shape[0], layer.weight[0].numel()
    if isinstance(layer, EliminatedLinear):
        return x.shape[:-1].numel(), outputs, summed
    y = layer.dense(
        layer.in_channels, 1, layer.kernel_size, layer.stride, layer.padding, layer.dilation, device="meta"
    )(x.new_empty(x.shape, device="meta", dtype=torch.float32))  # fmt: skip
    return y.numel(), outputs, summed


def nearest_first(tiles: Sequence[Tile]) -> list[Tile]:
    """Tiles in the order of how much they differ from the first."""
    first = astuple(tiles[0])

    def distance(tile: Tile) -> float:
        return sum(abs(log2(a / b)) for a, b in zip(astuple(tile)[:4], first[:4], strict=True))

    return sorted(tiles, key=distance)

"""The kernel's tile by measurement: for one layer, on inputs of one size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from math import log2

import torch
from torch import Tensor

from lamina.accelerate.elimination.nn import EliminatedConv1d, EliminatedConv2d, EliminatedLinear
from lamina.accelerate.elimination.tiles import Tile, candidates
from lamina.errors import UnsupportedError, UsageError

Timer = Callable[[Callable[[], object]], float]
"""The time of one call, in any unit."""


@torch.no_grad()
def tune(
    layer: EliminatedLinear | EliminatedConv1d | EliminatedConv2d,
    x: Tensor,
    timer: Timer,
    most: int | None = None,
) -> dict[Tile, float]:
    """Time tiles of the kernel and leave the fastest in ``layer.tile``.

    Args:
        layer: computed by ``impl="kernel"`` meanwhile.
        x: an input of the size, type, layout and device to tune for.
        timer: called with the layer's forward pass.
        most: how many tiles to time, those most like the untimed choice; all candidates, if left out.

    Returns:
        The time of each tile; one that the device has no room for is not among them.

    Raises:
        UsageError: the layer is of another kind, or no tile could run.
    """
    if not isinstance(layer, EliminatedLinear | EliminatedConv1d | EliminatedConv2d):
        raise UsageError(f"expected an eliminated Linear, Conv1d or Conv2d, got {type(layer).__name__}")
    before = layer.impl, layer.tile
    times: dict[Tile, float] = {}
    layer.impl = "kernel"
    for tile in nearest_first(candidates(*sizes(layer, x), x.itemsize, isinstance(layer, EliminatedLinear)))[:most]:
        layer.tile = tuple(tile.pack())
        try:
            times[tile] = timer(lambda: layer(x))
        except UnsupportedError:
            continue
    layer.impl, layer.tile = before
    if not times:
        raise UsageError("expected a tile that the device has room for, got none: use impl='gather'")
    layer.tile = tuple(min(times, key=lambda tile: times[tile]).pack())
    return times


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

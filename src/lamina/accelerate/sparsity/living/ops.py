"""Convolutions over the channels that live in each image, as functions of tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lamina.accelerate.ops import INTERPRETED, index_type, launch, precision
from lamina.accelerate.sparsity.living import kernels
from lamina.accelerate.sparsity.tiles import Tile, columns_together, living_tile
from lamina.accelerate.sparsity.window import Window
from lamina.accelerate.tiling import between, power

GATHER_AT_MOST = 1 << 28
"""Bytes that each image's weights may take to be brought side by side."""


class Living(NamedTuple):
    """An image's living channels: their numbers ``(images, blocks, room)``, of which an image's first list is complete,
    how many ``(images,)``, and their values ``(images, pixels, room)``."""

    lists: Tensor
    lengths: Tensor
    near: Tensor


def takes(x: Tensor, window: Window) -> bool:
    """Whether images are large enough to have lists of their own, and their pixels evenly apart."""
    even = x.shape[2] <= 1 or x.stride(2) == x.shape[3] * x.stride(3)
    return even and x.numel() > 0 and columns_together(x.shape[0], x.shape[2], x.shape[3], window) > 0


def living(x: Tensor, depth: int) -> Living:
    """The channels of a map ``(N, C, H, W)`` that are not zero throughout their image, in whole ``depth``."""
    images, channels, pixels = x.shape[0], x.shape[1], x.shape[2] * x.shape[3]
    steps = x.stride(0), x.stride(1), x.stride(3)
    live = x.new_empty((images, channels), dtype=torch.int8)
    at_once, wide = between(1, power(channels), 8 if x.stride(1) == 1 else 4), between(16, power(pixels), 1024)
    launch(
        kernels.live_kernel, images * -(-channels // at_once), x, x, live, channels, pixels, *steps,
        BC=at_once, BP=wide, INDEX=index_type(x),
    )  # fmt: skip
    room, block = -(-channels // depth) * depth, between(16, power(pixels), 32)
    found = Living(
        x.new_empty((images, -(-pixels // block), room), dtype=torch.int32),
        x.new_empty(images, dtype=torch.int32),
        x.new_empty((images, pixels, room)),
    )
    launch(
        kernels.gather_kernel, images * found.lists.shape[1], x, x, live, *found, channels, pixels, room, *steps,
        ALL=between(16, power(channels), 1024), BP=block, BK=depth, INDEX=index_type(x, *found),
    )  # fmt: skip
    return found


def product(
    at: Tensor, bias: Tensor | None, x: Tensor, y: Tensor, window: Window, tile: Tile | None = None,
    near: bool | None = None,
) -> Tensor:  # fmt: skip
    """Fill ``y (N, M, H', W')`` with the convolution of ``x`` by ``at (taps * C, M)``.

    ``near`` brings each image's weights side by side, as tensor cores want them; by default where that takes not too
    much memory.
    """
    at = at.contiguous()
    (images, channels, height, width), outputs, pixels = x.shape, y.shape[1], y.shape[2] * y.shape[3]
    tile = tile or living_tile(outputs, pixels, x.itemsize, precision() == "tf32x3")
    found = living(x, tile.depth)
    room, blocks = found.near.shape[2], found.lists.shape[1]
    size = images * window.taps * outputs * room
    if near is None:
        near = size * x.itemsize <= GATHER_AT_MOST
    weights = at
    if near:
        weights = at.new_empty(size)
        high = between(16, power(outputs), 64)
        launch(
            kernels.gather_weights_kernel, images * window.taps * -(-outputs // high), x,
            at, found.lists, found.lengths, weights, outputs, channels, room, blocks, window.taps,
            BM=high, BK=tile.depth, INDEX=index_type(at, weights),
        )  # fmt: skip
    launch(
        kernels.living_kernel, images * -(-pixels // tile.columns) * -(-outputs // tile.outputs), y,
        weights, y if bias is None else bias.contiguous(), found.near, found.lists, found.lengths, y, outputs,
        channels, room, blocks, pixels, y.shape[3], height, width, y.stride(0), y.stride(1), y.stride(3),
        **window.switches(), BIAS=bias is not None, LISTED=not near, BM=tile.outputs, BN=tile.columns, BK=tile.depth,
        PRECISION=precision(), UPCAST=INTERPRETED, INDEX=index_type(weights, found.near, y),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y

"""Convolutions over the channels that live in each image, as functions of tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lamina.accelerate.common.tiling import clamp, next_power_of_2
from lamina.accelerate.methods.activation_sparsity.row_union import kernels
from lamina.accelerate.methods.activation_sparsity.split_fp16.ops import parts_for, weights
from lamina.accelerate.methods.activation_sparsity.tiles import Tile, columns_per_list, living_tile
from lamina.accelerate.methods.activation_sparsity.window import Window
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.triton_ops import INTERPRETED, index_type


class Living(NamedTuple):
    """An image's living channels: their numbers ``(images, room)``, how many ``(images,)``, the exponents ``(images,)``
    of the powers of two that halves stand under, and their values ``(halves, images, pixels, room)``."""

    lists: Tensor
    lengths: Tensor
    shifts: Tensor
    near: Tensor


def takes(x: Tensor, window: Window) -> bool:
    """Whether images are large enough to have lists of their own, and their pixels evenly apart."""
    even = x.shape[2] <= 1 or x.stride(2) == x.shape[3] * x.stride(3)
    return even and x.numel() > 0 and columns_per_list(x.shape[0], x.shape[2], x.shape[3], window) > 0


def living(x: Tensor, depth: int, halves: int = 0) -> Living:
    """The channels of a map ``(N, C, H, W)`` that are not zero throughout their image, in whole ``depth``.

    In so many halves; as they are, without any.
    """
    images, channels, pixels = x.shape[0], x.shape[1], x.shape[2] * x.shape[3]
    steps = x.stride(0), x.stride(1), x.stride(3)
    live = x.new_empty((images, channels), dtype=torch.int8)
    at_once, wide = (
        clamp(1, next_power_of_2(channels), 8 if x.stride(1) == 1 else 4),
        clamp(16, next_power_of_2(pixels), 1024),
    )
    parts = -(-channels // at_once)
    peaks = x.new_empty((images, parts), dtype=torch.float32)
    launch(
        kernels.live_kernel, images * parts, x, x, live, peaks, channels, pixels, *steps,
        BC=at_once, BP=wide, X=halves, INDEX=index_type(x),
    )  # fmt: skip
    room, block = -(-channels // depth) * depth, clamp(16, next_power_of_2(pixels), 64)
    found = Living(
        x.new_empty((images, room), dtype=torch.int32),
        x.new_empty(images, dtype=torch.int32),
        x.new_empty(images, dtype=torch.int32),
        x.new_empty((max(halves, 1), images, pixels, room), dtype=torch.float16 if halves else x.dtype),
    )
    launch(
        kernels.gather_kernel, images * -(-pixels // block) * (room // depth), x,
        x, live, peaks, *found[:3], found.near[0], found.near[-1], channels, pixels, room, parts, *steps,
        ALL=clamp(16, next_power_of_2(channels), 1024), BP=block, BK=depth, X=halves, PARTS=next_power_of_2(parts),
        INDEX=index_type(x, found.lists, found.near[0]),
    )  # fmt: skip
    return found


def product(
    at: Tensor, bias: Tensor | None, x: Tensor, y: Tensor, window: Window, tile: Tile | None = None,
    parts: tuple[int, int] | None = None,
) -> Tensor:  # fmt: skip
    """Fill ``y (N, M, H', W')`` with the convolution of ``x`` by ``at (taps * C, M)``, or ``(taps, C, M)``.

    ``parts`` are the halves of float32 activations and of weights.
    """
    (images, channels, height, width), outputs, pixels = x.shape, y.shape[1], y.shape[2] * y.shape[3]
    of_x, of_weights = parts or parts_for(x)
    tile = tile or living_tile(outputs, images * pixels, of_weights)
    near_at, peaks = weights(at, of_weights)
    found = living(x, tile.depth, of_x)
    columns, room = images * pixels, found.near.shape[3]
    launch(
        kernels.living_kernel, -(-columns // tile.columns) * -(-outputs // tile.outputs), y,
        near_at[0], near_at[-1], peaks, y if bias is None else bias.contiguous(), found.near[0],
        found.near[-1], *found[:3], y, outputs, columns, channels, room, pixels, y.shape[3], height, width,
        y.stride(0), y.stride(1), y.stride(3),
        **window.switches(), BIAS=bias is not None, X=of_x, W=of_weights, SHARES=peaks.numel(),
        BM=tile.outputs, BN=tile.columns, BK=tile.depth, NARROW=min(tile.depth, 32), UPCAST=INTERPRETED,
        INDEX=index_type(near_at[0], found.near[0], y), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y

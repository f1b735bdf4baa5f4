"""Convolutions over the active channels of each image, as functions of tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.common.tiling import clamp, next_power_of_2
from lamina.accelerate.methods.activation_sparsity.row_union.channels import kernels
from lamina.accelerate.methods.activation_sparsity.row_union.split_fp16.ops import split_terms, split_weight
from lamina.accelerate.methods.activation_sparsity.tiles import Tile, columns_per_list, compacted_conv_tile
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.triton_ops import INTERPRETED, index_type


class CompactedChannels(NamedTuple):
    """The active channels of each image: those with a non-zero anywhere in it.

    Attributes:
        lists: int32 ``(images, capacity)``, channel indices, ascending.
        lengths: int32 ``(images,)``.
        exponents: int32 ``(images,)`` of the power-of-two scales of split-fp16 values.
        values: ``(terms, images, pixels, capacity)``, the channels compacted, pixel by pixel.
    """

    lists: Tensor
    lengths: Tensor
    exponents: Tensor
    values: Tensor


def is_supported(x: Tensor, window: Conv2dGeometry) -> bool:
    """Whether images are large enough for lists of their own, and their pixels at one constant stride."""
    even = x.shape[2] <= 1 or x.stride(2) == x.shape[3] * x.stride(3)
    return even and x.numel() > 0 and columns_per_list(x.shape[0], x.shape[2], x.shape[3], window) > 0


def compact_channels(x: Tensor, block_k: int, terms: int = 0) -> CompactedChannels:
    """The active channels of a map ``(N, C, H, W)``, padded with zeros to multiples of ``block_k``.

    Split into as many float16 ``terms``; in the dtype of ``x`` without any.
    """
    images, channels, pixels = x.shape[0], x.shape[1], x.shape[2] * x.shape[3]
    strides = x.stride(0), x.stride(1), x.stride(3)
    active = x.new_empty((images, channels), dtype=torch.int8)
    block_c = clamp(1, next_power_of_2(channels), 8 if x.stride(1) == 1 else 4)
    partials = -(-channels // block_c)
    partial_amax = x.new_empty((images, partials), dtype=torch.float32)
    launch(
        kernels.active_channels_kernel, images * partials, x,
        x, active, partial_amax, channels, pixels, *strides,
        BLOCK_C=block_c, BLOCK_P=clamp(16, next_power_of_2(pixels), 1024), X_TERMS=terms, INDEX=index_type(x),
    )  # fmt: skip
    capacity, block_p = -(-channels // block_k) * block_k, clamp(16, next_power_of_2(pixels), 64)
    compacted = CompactedChannels(
        x.new_empty((images, capacity), dtype=torch.int32),
        x.new_empty(images, dtype=torch.int32),
        x.new_empty(images, dtype=torch.int32),
        x.new_empty((max(terms, 1), images, pixels, capacity), dtype=torch.float16 if terms else x.dtype),
    )
    launch(
        kernels.compact_kernel, images * -(-pixels // block_p) * (capacity // block_k), x,
        x, active, partial_amax, *compacted[:3], compacted.values[0], compacted.values[-1], channels, pixels, capacity,
        partials, *strides,
        BLOCK_CHANNELS=clamp(16, next_power_of_2(channels), 1024), BLOCK_P=block_p, BLOCK_K=block_k, X_TERMS=terms,
        BLOCK_PARTIALS=next_power_of_2(partials), INDEX=index_type(x, compacted.lists, compacted.values[0]),
    )  # fmt: skip
    return compacted


def product(
    at: Tensor, bias: Tensor | None, x: Tensor, y: Tensor, window: Conv2dGeometry, tile: Tile | None = None,
    terms: tuple[int, int] | None = None,
) -> Tensor:  # fmt: skip
    """Write the convolution of ``x`` by ``at (taps * C, M)`` or ``(taps, C, M)`` to ``y (N, M, H', W')``.

    ``terms`` are the float16 terms of float32 activations and of weights.
    """
    (images, channels, height, width), outputs, pixels = x.shape, y.shape[1], y.shape[2] * y.shape[3]
    x_terms, w_terms = terms or split_terms(x)
    tile = tile or compacted_conv_tile(outputs, images * pixels, w_terms)
    split, amax = split_weight(at, w_terms)
    compacted = compact_channels(x, tile.block_k, x_terms)
    columns, capacity = images * pixels, compacted.values.shape[3]
    launch(
        kernels.compacted_conv_kernel, -(-columns // tile.block_n) * -(-outputs // tile.block_m), y,
        split[0], split[-1], amax, y if bias is None else bias.contiguous(), compacted.values[0],
        compacted.values[-1], *compacted[:3], y, outputs, columns, channels, capacity, pixels, y.shape[3], height,
        width, y.stride(0), y.stride(1), y.stride(3), **window.constexprs(), BIAS=bias is not None, X_TERMS=x_terms,
        W_TERMS=w_terms, W_PARTIALS=amax.numel(), BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k,
        NARROW_BLOCK_K=min(tile.block_k, 32), UPCAST=INTERPRETED, INDEX=index_type(split[0], compacted.values[0], y),
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return y

"""Launches of the kernels. Nothing is autotuned: both variants run with the same tiles."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.papers.l1_bypass import kernels
from lamina.accelerate.runtime.triton_ops import index_type, launch_with_triton
from lamina.spec.geometry import Pair

TILE = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 16}
PROGRAMS = 1024
"""Programs that fill a large GPU several times over: rows of a weight gradient are split until there are so many."""
OPTIONS: dict[str, Any] = {"num_warps": 4, "num_stages": 1}


def run_forward(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, bypass: bool) -> Tensor:
    """``y (N, K, OH, OW)`` of contiguous ``x (N, C, H, W)`` and ``weight (K, C, R, S)``."""
    filters, out = weight.shape[0], _positions(x, weight.shape[2:], stride, padding)
    y = x.new_empty(x.shape[0], filters, *out)
    rows, columns = x.shape[0] * out[0] * out[1], weight[0].numel()
    grid = (-(-rows // TILE["BLOCK_M"]), -(-filters // TILE["BLOCK_N"]))
    launch_with_triton(
        kernels.forward_kernel, grid, x,
        x, weight, y, rows, columns, filters, *x.shape[1:], *out, *weight.shape[2:], *stride, *padding,
        **TILE, CACHE=_cache(bypass), INDEX=index_type(x, y), **OPTIONS,
    )  # fmt: skip
    return y


def run_weight_gradient(x: Tensor, gy: Tensor, kernel: Pair, stride: Pair, padding: Pair, bypass: bool) -> Tensor:
    """``(K, C, R, S)`` of contiguous ``x (N, C, H, W)`` and ``gy (N, K, OH, OW)``."""
    filters, out = gy.shape[1], (gy.shape[2], gy.shape[3])
    rows, columns = gy.shape[0] * out[0] * out[1], x.shape[1] * kernel[0] * kernel[1]
    tiles = (-(-filters // TILE["BLOCK_M"]), -(-columns // TILE["BLOCK_N"]))
    blocks = -(-rows // TILE["BLOCK_K"])
    blocks_per_split = -(-blocks // max(1, min(blocks, PROGRAMS // (tiles[0] * tiles[1]))))
    splits = -(-blocks // blocks_per_split)
    partials = x.new_empty(splits, filters, columns)
    launch_with_triton(
        kernels.weight_gradient_kernel, (*tiles, splits), x,
        x, gy, partials, rows, columns, filters, *x.shape[1:], *out, *kernel, *stride, *padding,
        blocks_per_split * TILE["BLOCK_K"],
        **TILE, CACHE=_cache(bypass), INDEX=index_type(x, gy, partials), **OPTIONS,
    )  # fmt: skip
    return torch.sum(partials, 0).view(filters, x.shape[1], *kernel)


def _cache(bypass: bool) -> str:
    return ".cg" if bypass else ".ca"


def _positions(x: Tensor, kernel: torch.Size, stride: Pair, padding: Pair) -> Pair:
    height, width = (
        (size + 2 * pad - taps) // step + 1
        for size, pad, taps, step in zip(x.shape[2:], padding, kernel, stride, strict=True)
    )
    return height, width

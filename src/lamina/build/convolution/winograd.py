"""Minimal filtering F(m,3), nested for images, m = 2 or 4 (Lavin & Gray, CVPR 2016, sections 4.1 to 4.3).

On input tiles ``d`` of m + 2: ``Y = A^T [ sum_c (G w G^T) * (B^T d B) ] A``. The sum over channels is one
batched matrix product, with a batch entry for each point of the transform. The data gradient is the same on ``gy`` with
flipped weights, the weight gradient the adjoint: ``G^T [ sum_tiles (A gy A^T) * (B^T d B) ] G``. fp16 and bf16 are
transformed in float32 and multiplied in their own precision, so that tensor cores can be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lamina.build.convolution.geometry import Geometry, refuse_transposed
from lamina.errors import UsageError
from lamina.spec.shape import Shape, show

MIN_WIDTH_F4 = 8
"""Output width from which F(4, 3) is the default: two of its tiles."""


class _Transform(NamedTuple):
    """``A^T``, ``B^T`` and ``G`` of F(m, 3)."""

    output: Tensor
    data: Tensor
    filter: Tensor


_COEFFICIENTS: dict[int, tuple[list[list[float]], list[list[float]], list[list[float]]]] = {
    2: (
        [[1, 1, 1, 0], [0, 1, -1, -1]],
        [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]],
        [[1, 0, 0], [1 / 2, 1 / 2, 1 / 2], [1 / 2, -1 / 2, 1 / 2], [0, 0, 1]],
    ),
    4: (
        [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]],
        [
            [4, 0, -5, 0, 1, 0],
            [0, -4, -4, 1, 1, 0],
            [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0],
            [0, 2, -1, -2, 1, 0],
            [0, 4, 0, -5, 0, 1],
        ],
        [
            [1 / 4, 0, 0],
            [-1 / 6, -1 / 6, -1 / 6],
            [-1 / 6, 1 / 6, -1 / 6],
            [1 / 24, 1 / 12, 1 / 6],
            [1 / 24, -1 / 12, 1 / 6],
            [0, 0, 1],
        ],
    ),
}


def forward(x: Tensor, w: Tensor, geometry: Geometry, tile: int | None = None) -> Tensor:
    """Output ``(N, K, *size)`` of inputs ``(N, C, *size)``; ``tile`` is m, chosen by the output width if None."""
    size = geometry.output_size(x.shape[2:], w.shape[2:])
    return _convolve(x, w, geometry, size, _choose(tile, size))


def backward_data(gy: Tensor, w: Tensor, geometry: Geometry, x_shape: Sequence[int], tile: int | None = None) -> Tensor:
    """Gradient of the input, ``x_shape``."""
    flipped = w.flip(tuple(range(2, w.dim())))
    flipped = torch.unflatten(flipped, 0, (geometry.groups, -1)).transpose(1, 2).flatten(0, 1)
    full = replace(geometry, padding=tuple(2 - p for p in geometry.padding))
    return _convolve(gy, flipped, full, tuple(x_shape[2:]), _choose(tile, gy.shape[2:]))


def backward_weight(
    gy: Tensor, x: Tensor, geometry: Geometry, w_shape: Sequence[int], tile: int | None = None
) -> Tensor:
    """Gradient of the weight, ``w_shape``."""
    size, rank, groups = tuple(gy.shape[2:]), geometry.rank, geometry.groups
    tile = _choose(tile, size)
    transform = _transform(tile, _work_type(x), x.device)
    data = _points(transform.data, _tiles(x, size, tile, tile + 2, geometry.padding), groups, x.dtype)
    loss = _points(transform.output.t(), _tiles(gy, size, tile, tile, (0,) * rank), groups, x.dtype)
    taps = _back(transform.filter.t(), loss @ data.transpose(-1, -2), rank)
    return taps.permute(rank, rank + 1, *range(rank)).to(x.dtype).contiguous()


def refusal(geometry: Geometry, w_shape: Sequence[int]) -> str | None:
    """Supported are kernels of 3, stride and dilation 1, and paddings up to 2."""
    if geometry.transposed:
        return refuse_transposed(geometry)
    if set(w_shape[2:]) != {3}:
        return f"needs a kernel of 3 along each axis, got {show(tuple(w_shape[2:]))}"
    if {*geometry.stride, *geometry.dilation} != {1}:
        got = f"stride {show(geometry.stride)} and dilation {show(geometry.dilation)}"
        return f"needs stride 1 and dilation 1, got {got}"
    if max(geometry.padding) > 2:
        return f"needs a padding of 0, 1 or 2, got {show(geometry.padding)}"
    return None


def _choose(tile: int | None, size: Sequence[int]) -> int:
    if tile is None:
        return 4 if size[-1] >= MIN_WIDTH_F4 else 2
    if tile not in _COEFFICIENTS:
        raise UsageError(f"winograd: expected tile 2 or 4, got {tile}")
    return tile


def _work_type(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


@cache
def _transform(tile: int, dtype: torch.dtype, device: torch.device) -> _Transform:
    # Cached per device: a host-to-device copy in each call would synchronize, and CUDA graphs cannot capture it.
    with torch.inference_mode(False):
        matrices = (torch.tensor(rows, dtype=torch.float64) for rows in _COEFFICIENTS[tile])
        return _Transform(*(matrix.to(device, dtype) for matrix in matrices))


def _convolve(x: Tensor, w: Tensor, geometry: Geometry, size: Shape, tile: int) -> Tensor:
    rank, groups = geometry.rank, geometry.groups
    transform = _transform(tile, _work_type(x), x.device)
    filters = _points(transform.filter, w.permute(*range(2, 2 + rank), 0, 1), groups, x.dtype)
    data = _points(transform.data, _tiles(x, size, tile, tile + 2, geometry.padding), groups, x.dtype)
    tiles = _back(transform.output, filters @ data, rank)
    return _assemble(tiles, x.shape[0], size, tile).to(x.dtype)


def _tiles(t: Tensor, size: Shape, step: int, extent: int, left: Shape) -> Tensor:
    """Split ``(N, C, *S)`` into the input tiles of an output of ``size``: ``(*extent, C, N * tiles)``."""
    rank = len(size)
    pads: list[int] = []
    for axis in reversed(range(rank)):
        total = -(-size[axis] // step) * step + extent - step
        pads += [left[axis], total - left[axis] - t.shape[2 + axis]]
    t = F.pad(t, pads)
    for axis in range(rank):
        t = t.unfold(2 + axis, extent, step)
    return t.permute(*range(2 + rank, 2 + 2 * rank), 1, 0, *range(2, 2 + rank)).flatten(rank + 1)


def _along(matrix: Tensor, t: Tensor, rank: int) -> Tensor:
    """Apply ``matrix`` along each of the first ``rank`` axes, each time as one matrix product."""
    for axis in range(rank):
        t = torch.unflatten(matrix @ t.flatten(axis + 1), -1, t.shape[axis + 1 :])
    return t


def _points(matrix: Tensor, tiles: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """Transform tiles ``(*extent, C, P)`` to ``(points, g, C/g, P)``."""
    rank = tiles.dim() - 2
    points = _along(matrix, tiles.to(matrix.dtype), rank).to(dtype)
    return torch.unflatten(points.flatten(0, rank - 1), 1, (groups, -1))


def _back(matrix: Tensor, points: Tensor, rank: int) -> Tensor:
    """Transform products ``(points, g, K/g, P)`` back to ``(*extent, K, P)``."""
    square = torch.unflatten(points.flatten(1, 2), 0, (matrix.shape[1],) * rank)
    return _along(matrix, square.to(matrix.dtype), rank)


def _assemble(tiles: Tensor, batch: int, size: Shape, tile: int) -> Tensor:
    """Assemble output tiles ``(*m, K, N * tiles)`` to ``(N, K, *size)``, cropping the last ones."""
    rank = len(size)
    counts = tuple(-(-s // tile) for s in size)
    tiles = torch.unflatten(tiles, -1, (batch, *counts))
    axes = [a for axis in range(rank) for a in (rank + 2 + axis, axis)]
    y = tiles.permute(rank + 1, rank, *axes).reshape(batch, -1, *(n * tile for n in counts))
    return y[(slice(None), slice(None), *(slice(s) for s in size))].contiguous()

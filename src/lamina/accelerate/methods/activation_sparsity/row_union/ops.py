"""Row-union products: over the rows of the im2col matrix that hold a non-zero, on tensor cores.

The rows are those of each tile of columns or, where images are large enough, the active channels of each image.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.common.split_fp16 import ops as split_fp16_ops
from lamina.accelerate.common.tiling import next_power_of_2
from lamina.accelerate.methods.activation_sparsity.im2col import (
    POINTWISE,
    check_operand,
    is_matrix,
    map_arguments,
    matrix_as_map,
    matrix_size,
)
from lamina.accelerate.methods.activation_sparsity.row_union import kernels
from lamina.accelerate.methods.activation_sparsity.row_union.channels import ops as channels_ops
from lamina.accelerate.methods.activation_sparsity.row_union.split_fp16.ops import (
    split_terms,
    split_weight,
    without_gaps,
)
from lamina.accelerate.methods.activation_sparsity.tiles import Tile, row_union_tile
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.triton_ops import GROUP_SIZE_M, INTERPRETED, index_type


class RowUnion(NamedTuple):
    """The rows that hold a non-zero in any column of a tile.

    Attributes:
        lists: int32 ``(tiles, rows)``, ascending; the first ``lengths`` entries of each tile are valid.
        lengths: int32 ``(tiles,)``.
        partial_amax: float32 ``(tiles, partials)``, finite magnitudes of blocks of rows; written for split-fp16 only.
    """

    lists: Tensor
    lengths: Tensor
    partial_amax: Tensor


def row_union(x: Tensor, window: Conv2dGeometry, width: int, terms: int = 0) -> RowUnion:
    """The row union of each tile of ``width`` columns; with ``terms``, also the amaxes that split-fp16 needs."""
    check_operand(x)
    rows, columns, unpadded = matrix_size(x, window)
    tiles, block_k = -(-columns // width), max(1, min(next_power_of_2(rows), 4096 // width))
    partials = -(-rows // block_k)
    flags = x.new_empty((tiles, rows), dtype=torch.int8)
    union = RowUnion(
        x.new_empty((tiles, rows), dtype=torch.int32),
        x.new_empty(tiles, dtype=torch.int32),
        x.new_empty((tiles, partials), dtype=torch.float32),
    )
    launch(
        kernels.row_flags_kernel, tiles * partials, x,
        x, flags, union.partial_amax, rows, columns, *map_arguments(x, window),
        **window.constexprs(), UNPADDED=unpadded, IS_MATRIX=is_matrix(x, window), X_TERMS=terms, BLOCK_K=block_k,
        BLOCK_N=width, INDEX=index_type(x, union.lists),
    )  # fmt: skip
    launch(
        kernels.row_lists_kernel, tiles, x, flags, union.lists, union.lengths, rows,
        BLOCK_K=min(next_power_of_2(rows), 1024), INDEX=index_type(union.lists),
    )  # fmt: skip
    return union


def row_union_product(
    at: Tensor, bias: Tensor | None, x: Tensor, y: Tensor, window: Conv2dGeometry = POINTWISE, tile: Tile | None = None,
    terms: tuple[int, int] | None = None,
) -> Tensor:  # fmt: skip
    """Write the convolution of ``x`` by ``at (taps * C, M)`` or ``(taps, C, M)`` to ``y (N, M, H', W')``.

    ``terms`` are the float16 terms of float32 activations and of weights. ``tile`` selects rows per tile.
    """
    check_operand(y)
    if tile is None and channels_ops.is_supported(x, window) and y.numel():
        return channels_ops.product(at, bias, x, y, window, None, terms)
    rows, columns, unpadded = matrix_size(x, window)
    outputs = y.shape[1]
    tile = tile or row_union_tile(outputs, columns)
    x_terms, w_terms = terms or split_terms(x)
    (split, amax), union = split_weight(at, w_terms), row_union(x, window, tile.block_n, x_terms)
    partials = union.partial_amax.shape[1]
    launch(
        kernels.row_union_kernel, -(-columns // tile.block_n) * -(-outputs // tile.block_m), y,
        split[0], split[-1], amax, y if bias is None else bias.contiguous(), x, union.partial_amax, union.lists,
        union.lengths, y, outputs, columns, rows, max(x.shape[1], 1), partials, *map_arguments(x, window)[1:],
        y.stride(0), y.stride(1), y.stride(3),
        **window.constexprs(), UNPADDED=unpadded, IS_MATRIX=is_matrix(x, window), BIAS=bias is not None,
        X_TERMS=x_terms, W_TERMS=w_terms, BLOCK_PARTIALS=next_power_of_2(partials), W_PARTIALS=amax.numel(),
        BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, GROUP_SIZE_N=GROUP_SIZE_M, UPCAST=INTERPRETED,
        INDEX=index_type(split[0], x, union.lists, y), num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return y


def masked_product(at: Tensor, x: Tensor, dc: Tensor, tile: Tile | None = None) -> Tensor:
    """``at (rows, M) @ dc (M, columns)`` where ``x (rows, columns)`` is not zero, and zero elsewhere.

    It is the gradient of the output ``x`` of a ReLU. ``dc`` has any strides.
    """
    check_operand(x)
    (rows, columns), outputs = x.shape, at.shape[1]
    tile = tile or row_union_tile(rows, columns)
    dc_terms, w_terms = split_terms(dc)
    (split, amax), union = split_weight(at, w_terms), row_union(matrix_as_map(x), POINTWISE, tile.block_n)
    dc_amax = split_fp16_ops.partial_amax(without_gaps(dc)) if dc_terms else dc
    db = torch.zeros((rows, columns), dtype=dc.dtype, device=x.device)
    partials = dc_amax.numel()
    launch(
        kernels.masked_kernel, -(-columns // tile.block_n) * -(-rows // tile.block_m), x,
        split[0], split[-1], amax, x, union.lists, union.lengths, dc, dc_amax, db, outputs, columns, rows, partials,
        *x.stride(), *dc.stride(),
        X_TERMS=dc_terms, W_TERMS=w_terms, BLOCK_PARTIALS=next_power_of_2(partials), W_PARTIALS=amax.numel(),
        BLOCK_M=tile.block_k, BLOCK_N=tile.block_n, BLOCK_K=tile.block_m, UPCAST=INTERPRETED,
        INDEX=index_type(split[0], x, union.lists, dc), num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return db

"""ELLPACK-DIB conversion and products as functions of tensors.

The CUDA kernels of `cuda` run where they support the operands, the Triton kernels of `kernels` elsewhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.common.split_fp16 import ops as split_fp16_ops
from lamina.accelerate.common.tiling import clamp, next_power_of_2
from lamina.accelerate.methods.activation_sparsity.ellpack import cuda, kernels
from lamina.accelerate.methods.activation_sparsity.ellpack.format import PANEL, TARGET_EXPONENT, EllpackDib, panels_of
from lamina.accelerate.methods.activation_sparsity.im2col import (
    POINTWISE,
    check_operand,
    flatten_pixels,
    is_matrix,
    map_arguments,
    matrix_size,
)
from lamina.accelerate.methods.activation_sparsity.row_union.split_fp16.ops import without_gaps
from lamina.accelerate.methods.activation_sparsity.tiles import Tile, nonzero_tile, to_ellpack_tile
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.triton_ops import INTERPRETED, index_type
from lamina.errors import UnsupportedError


def scales_of(x: Tensor, panels: int = 1) -> Tensor:
    """A power of two for each panel that scales the finite amax of ``x`` just below the largest float16.

    float16 needs no scale: 1.
    """
    check_operand(x)
    if x.dtype == torch.float16:
        return x.new_ones(panels, dtype=torch.float32)
    partials = split_fp16_ops.partial_amax(without_gaps(x))
    scales = x.new_empty(panels, dtype=torch.float32)
    count = partials.numel()
    launch(
        kernels.scale_kernel, 1, x, partials, scales, count, panels, TARGET_EXPONENT=TARGET_EXPONENT,
        BLOCK=next_power_of_2(count),
    )
    return scales


def to_ellpack(
    x: Tensor, scales: Tensor | None = None, window: Conv2dGeometry = POINTWISE, *, panel: int = PANEL,
    capacity: int | None = None, tile: Tile | None = None,
) -> EllpackDib:  # fmt: skip
    """The im2col matrix of ``x`` in ELLPACK-DIB; with a 1x1 window, the map itself.

    Args:
        x: ``(N, C, H, W)``.
        scales: one for each panel. If omitted, all are fitted to the amax of ``x``.
        window: of the convolution.
        panel: rows of a panel.
        capacity: slots of a column. If omitted, as many as a panel has rows, which needs no pass over the data.
        tile: of the Triton kernel, which then runs in any case. If omitted, the sizes determine kernel and tile.
    """
    check_operand(x)
    rows, columns, _ = matrix_size(x, window)
    panels = panels_of(rows, panel)
    capacity = min(panel, rows) if capacity is None else capacity
    words = x.new_empty((panels, capacity, columns), dtype=torch.int32)
    counts = x.new_empty((panels, columns), dtype=torch.int32)
    image = _as_pixel_row(x, window) if tile is None else None
    if image is None:
        scales = scales_of(x, panels) if scales is None else scales
        _convert(x, words, counts, scales, window, panel, tile)
    elif scales is None and x.dtype != torch.float16:
        scales = x.new_empty(panels, dtype=torch.float32)
        cuda.fit_and_convert(image, words, counts, scales, panel)
    else:
        scales = x.new_ones(panels, dtype=torch.float32) if scales is None else scales
        cuda.convert(image, words, counts, scales.contiguous(), panel)
    return EllpackDib(words, counts, scales, rows, panel)


def count_nonzeros(
    x: Tensor, window: Conv2dGeometry = POINTWISE, *, panel: int = PANEL, tile: Tile | None = None
) -> Tensor:
    """The number of non-zeros of each column of each panel, int32 ``(panels, columns)``, in one pass."""
    rows, columns, _ = matrix_size(x, window)
    check_operand(x)
    counts = x.new_empty((panels_of(rows, panel), columns), dtype=torch.int32)
    image = _as_pixel_row(x, window) if tile is None else None
    if image is None:
        _convert(x, None, counts, None, window, panel, tile)
    else:
        cuda.convert(image, None, counts, counts.view(torch.float32), panel)
    return counts


def from_ellpack(sparse: EllpackDib, y: Tensor) -> Tensor:
    """Write the non-zeros of a map in ELLPACK-DIB into ``y (N, C, H, W)``, which is zero-initialized."""
    check_operand(y)
    image = flatten_pixels(y)
    columns, block_n = sparse.columns, clamp(1, next_power_of_2(sparse.columns), 128)
    pixels = y.shape[2] * y.shape[3]
    if image.shape[2] > 1:
        raise UnsupportedError(f"from_ellpack: expected pixels at one constant stride, got strides {y.stride()}")
    if sparse.rows:
        launch(
            kernels.from_ellpack_kernel, -(-columns // block_n) * sparse.words.shape[0], y,
            sparse.words, sparse.counts, sparse.scales, y, columns, sparse.panel, sparse.capacity, pixels,
            image.stride(0), image.stride(1), image.stride(3), BLOCK_N=block_n, UPCAST=INTERPRETED,
            INDEX=index_type(sparse.words, y),
        )  # fmt: skip
    return y


def nonzero_product(
    at: Tensor, bias: Tensor | None, sparse: EllpackDib, y: Tensor, sizes: tuple[int, int],
    window: Conv2dGeometry = POINTWISE, tile: Tile | None = None,
) -> Tensor:  # fmt: skip
    """Write the convolution of a map in ELLPACK-DIB, of height and width ``sizes``, to ``y (N, M, H', W')``.

    ``at`` is ``(taps * C, M)``. ``tile`` selects the Triton kernel.
    """
    check_operand(y)
    outputs, pixels = y.shape[1], y.shape[2] * y.shape[3]
    columns = y.shape[0] * pixels
    if not sparse.rows:
        return y.copy_(torch.zeros_like(y) if bias is None else bias[:, None, None].expand_as(y))
    product_tile = cuda.product_tile(outputs, columns, at.itemsize)
    if tile is None and cuda.is_product_supported(sparse, y, product_tile, at.itemsize):
        cuda.product(cuda.weights(at, at.dtype), bias, sparse, y, sizes, window, product_tile)
        return y
    at, tile = at.contiguous(), tile or nonzero_tile(outputs, columns)
    launch(
        kernels.nonzero_kernel, -(-columns // tile.block_n) * -(-outputs // tile.block_m), y,
        at, y if bias is None else bias.contiguous(), sparse.words, sparse.counts, sparse.scales, y, outputs, columns,
        sparse.rows, sparse.panel, sparse.words.shape[0], sparse.capacity, sparse.columns, pixels, y.shape[3], *sizes,
        y.stride(0), y.stride(1), y.stride(3),
        **window.constexprs(), BIAS=bias is not None, BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, UNROLL=tile.block_k,
        UPCAST=INTERPRETED, INDEX=index_type(at, sparse.words, y), num_warps=tile.num_warps,
    )  # fmt: skip
    return y


def _convert(
    x: Tensor, words: Tensor | None, counts: Tensor, scales: Tensor | None, window: Conv2dGeometry, panel: int,
    tile: Tile | None,
) -> None:  # fmt: skip
    check_operand(x)
    x = flatten_pixels(x) if window.pointwise else x
    rows, columns, unpadded = matrix_size(x, window)
    panels, capacity = counts.shape[0], 0 if words is None else words.shape[1]
    tile = tile or to_ellpack_tile(min(panel, rows), columns, panels)
    launch(
        kernels.to_ellpack_kernel, -(-columns // tile.block_n) * panels, x,
        x, counts if words is None else words, counts, counts if scales is None else scales, rows, columns, panel,
        capacity, *map_arguments(x, window), **window.constexprs(), UNPADDED=unpadded, IS_MATRIX=is_matrix(x, window),
        STORE=words is not None, BLOCK_K=tile.block_k, BLOCK_N=tile.block_n,
        INDEX=index_type(x, counts if words is None else words),
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip


def _as_pixel_row(x: Tensor, window: Conv2dGeometry) -> Tensor | None:
    """The map as one row of pixels if the CUDA conversion supports it, or ``None``."""
    image = flatten_pixels(x)
    return image if window.pointwise and cuda.is_supported(image) and image.shape[2] == 1 else None

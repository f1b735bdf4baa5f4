"""Launches of the kernels: grids and constexpr arguments."""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.accelerate.common.tiling import next_power_of_2
from lamina.accelerate.methods.elimination import kernels
from lamina.accelerate.methods.elimination.tiles import Tile, linear_tile, product_tile, tf32x3
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.triton_ops import GROUP_SIZE_M, INTERPRETED, check_kernel_operand, index_type, precision
from lamina.errors import UnsupportedError, UsageError

ALTERNATIVE = 'use impl="gather"'

MAX_TAPS = 31
"""Taps of a kernel: a mask of those inside the image is kept in the bits of one int32."""


def check_taps(kernel: tuple[int, ...] | list[int]) -> None:
    """Refuse a convolution with more taps than the kernel supports.

    Raises:
        UnsupportedError: naming the limit.
    """
    taps = torch.Size(kernel).numel()
    if taps > MAX_TAPS:
        raise UnsupportedError(
            f'elimination kernels: expected a kernel of at most {MAX_TAPS} taps, got {taps}; use impl="gather"'
        )


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, columns: Tensor | None, y: Tensor, run: int, tile: list[int]
) -> None:  # fmt: skip
    """``x (rows, in)`` of any strides; a tile of one row is that of `kernels.vector_kernel`."""
    outputs, summed = weight.shape
    at = Tile.unpack(tile) if tile else linear_tile(len(x), outputs, summed, x.itemsize, tf32x3(x))
    if at.block_m > 1:
        ones, zeros = [1, 1], [0, 0]
        product(
            x[..., None, None], weight, bias, columns, y[..., None, None], ones, ones, zeros, ones, run, at.pack()
        )  # fmt: skip
        return
    check_kernel_operand(x, "elimination", ALTERNATIVE)
    x, weight = x if x.stride(1) == 1 else x.contiguous(), weight.contiguous()
    launch(
        kernels.vector_kernel, (-(-outputs // at.block_n), len(x)), x,
        x, weight, y if bias is None else bias.contiguous(), y if columns is None else columns.contiguous(), y,
        outputs, summed, x.stride(0), summed, y.stride(0),
        TABLE=columns is not None, EVEN_K=summed % at.block_k == 0, BIAS=bias is not None,
        BLOCK_N=at.block_n, BLOCK_K=at.block_k,
        UPCAST=INTERPRETED, INDEX=index_type(x, weight, y), num_warps=at.num_warps, num_stages=at.num_stages,
    )  # fmt: skip


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, columns: Tensor | None, y: Tensor,
    kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], run: int, tile: list[int],
) -> None:  # fmt: skip
    """``x (N, C, H, W)`` and ``y (N, out, H', W')`` of any strides."""
    check_kernel_operand(x, "elimination", ALTERNATIVE)
    check_taps(kernel)
    weight = weight.contiguous()
    (batch, _, height, width), (outputs, summed) = x.shape, weight.shape
    pixels = y.shape[2] * y.shape[3]
    rows = batch * pixels
    at = Tile.unpack(tile) if tile else product_tile(rows, outputs, summed, x.itemsize, tf32x3(x))
    if at.block_m < 16:
        raise UsageError(f"tile: expected block_m of at least 16 for a product of {rows} rows, got {at.block_m}")
    partials = x.new_empty((at.split_k, rows, outputs) if at.split_k > 1 else 0, dtype=torch.float32)
    reach = [
        step * (size - 1) + spacing * (taps - 1) - 2 * pad
        for step, size, spacing, taps, pad in zip(stride, y.shape[2:], dilation, kernel, padding, strict=True)
    ]
    inside = padding == [0, 0] and reach[0] < height and reach[1] < width
    first = 0 if columns is not None else summed // torch.Size(kernel).numel()
    even = first > 0 and first % at.block_k == 0
    run = first & -first if first else run
    common = {
        "BIAS": bias is not None, "SPLIT_K": at.split_k, "UPCAST": INTERPRETED,
        "INDEX": index_type(x, weight, y, partials),
    }  # fmt: skip
    y_strides = y.stride(0), y.stride(1), y.stride(3)
    offset = y if bias is None else bias.contiguous()
    launch(
        kernels.product_kernel, -(-rows // at.block_m) * -(-outputs // at.block_n) * at.split_k, x,
        x, weight, offset, y if columns is None else columns.contiguous(), y, partials,
        rows, outputs, summed, first, pixels, y.shape[3], height, width, *x.stride(), summed, *y_strides,
        KH=kernel[0], KW=kernel[1], SH=stride[0], SW=stride[1], PH=padding[0], PW=padding[1],
        DH=dilation[0], DW=dilation[1], INSIDE=inside, FIRST=-1 if even else first, RUN=_run_in(x, run),
        EVEN_K=summed % at.block_k == 0, BLOCK_M=at.block_m, BLOCK_N=at.block_n, BLOCK_K=at.block_k,
        GROUP_M=GROUP_SIZE_M, PRECISION=precision(),
        **common, num_warps=at.num_warps, num_stages=at.num_stages if first else 2 * at.num_stages - 1,
    )  # fmt: skip
    if at.split_k > 1:
        block_m, block_n = min(next_power_of_2(rows), 16), min(next_power_of_2(outputs), 128)
        programs = -(-rows // block_m) * -(-outputs // block_n)
        launch(
            kernels.sum_kernel, programs, x, partials, offset, y, rows, outputs, pixels, *y_strides,
            BLOCK_M=block_m, BLOCK_N=block_n, **common,
        )  # fmt: skip


def _run_in(x: Tensor, run: int) -> int:
    """Consecutive elements of K that are one aligned load of this input."""
    if x.stride(1) != 1:
        return 1
    run = min(run, 16 // x.itemsize)
    while any(x.stride(axis) % run for axis in (0, 2, 3) if x.shape[axis] > 1):
        run //= 2
    return run


def pack(x: Tensor, index: Tensor, y: Tensor) -> None:
    """``x (N, C, H, W)`` of any strides to ``y (N, kept, H, W)``, channels-last."""
    check_kernel_operand(x, "elimination", ALTERNATIVE)
    kept, (batch, _, height, width) = len(index), x.shape
    rows = batch * height * width
    # Coalesced loads: neighbouring threads read neighbouring pixels, or channels.
    block_m, block_c = (64, 32) if width > 1 and x.stride(3) == 1 else (16, 128)
    launch(
        kernels.pack_kernel, (-(-rows // block_m), -(-kept // block_c)), x,
        x, index.contiguous(), y, rows, kept, height * width, width, *x.stride(),
        BLOCK_M=block_m, BLOCK_C=block_c, INDEX=index_type(x, y),
    )  # fmt: skip

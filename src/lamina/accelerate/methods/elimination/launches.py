"""How the kernels are launched: their grids, and what they are specialised for."""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.accelerate.common.tiling import next_power_of_2
from lamina.accelerate.methods.elimination import kernels
from lamina.accelerate.methods.elimination.tiles import Tile, linear_tile, product_tile, thrice
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.triton_ops import GROUP_SIZE_M, INTERPRETED, check_kernel_operand, index_type, precision
from lamina.errors import UnsupportedError, UsageError

ALTERNATIVE = 'use impl="gather"'

MOST_TAPS = 31
"""Of a window: which of them lie inside the image is kept in the bits of one number."""


def check_taps(kernel: tuple[int, ...] | list[int]) -> None:
    """Refuse a window with more taps than the kernel has bits for.

    Raises:
        UnsupportedError: naming the limit.
    """
    taps = torch.Size(kernel).numel()
    if taps > MOST_TAPS:
        raise UnsupportedError(
            f'elimination kernels: expected a window of at most {MOST_TAPS} taps, got {taps}; use impl="gather"'
        )


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, columns: Tensor | None, y: Tensor, run: int, tile: list[int]
) -> None:  # fmt: skip
    """``x (rows, in)`` of any strides; a tile of one row is that of `kernels.vector_kernel`."""
    outputs, summed = weight.shape
    at = Tile.unpack(tile) if tile else linear_tile(len(x), outputs, summed, x.itemsize, thrice(x))
    if at.rows > 1:
        one, none = [1, 1], [0, 0]
        product(
            x[..., None, None], weight, bias, columns, y[..., None, None], one, one, none, one, run, at.pack()
        )  # fmt: skip
        return
    check_kernel_operand(x, "elimination", ALTERNATIVE)
    x, weight = x if x.stride(1) == 1 else x.contiguous(), weight.contiguous()
    launch(
        kernels.vector_kernel, (-(-outputs // at.columns), len(x)), x,
        x, weight, y if bias is None else bias.contiguous(), y if columns is None else columns.contiguous(), y,
        outputs, summed, x.stride(0), summed, y.stride(0),
        TABLE=columns is not None, EVEN=summed % at.depth == 0, BIAS=bias is not None, BN=at.columns, BK=at.depth,
        UPCAST=INTERPRETED, INDEX=index_type(x, weight, y), num_warps=at.warps, num_stages=at.stages,
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
    at = Tile.unpack(tile) if tile else product_tile(rows, outputs, summed, x.itemsize, thrice(x))
    if at.rows < 16:
        raise UsageError(f"tile: expected at least 16 rows for a product of {rows}, got {at.rows}")
    shares = x.new_empty((at.splits, rows, outputs) if at.splits > 1 else 0, dtype=torch.float32)
    reach = [
        step * (size - 1) + spacing * (taps - 1) - 2 * margin
        for step, size, spacing, taps, margin in zip(stride, y.shape[2:], dilation, kernel, padding, strict=True)
    ]
    inside = padding == [0, 0] and reach[0] < height and reach[1] < width
    first = 0 if columns is not None else summed // torch.Size(kernel).numel()
    even = first > 0 and first % at.depth == 0
    run = first & -first if first else run
    common = {
        "BIAS": bias is not None, "SPLITS": at.splits, "UPCAST": INTERPRETED, "INDEX": index_type(x, weight, y, shares),
    }  # fmt: skip
    places = y.stride(0), y.stride(1), y.stride(3)
    offset = y if bias is None else bias.contiguous()
    launch(
        kernels.product_kernel, -(-rows // at.rows) * -(-outputs // at.columns) * at.splits, x,
        x, weight, offset, y if columns is None else columns.contiguous(), y, shares,
        rows, outputs, summed, first, pixels, y.shape[3], height, width, *x.stride(), summed, *places,
        KH=kernel[0], KW=kernel[1], SH=stride[0], SW=stride[1], PH=padding[0], PW=padding[1],
        DH=dilation[0], DW=dilation[1], INSIDE=inside, FIRST=-1 if even else first, RUN=_run_in(x, run),
        EVEN=summed % at.depth == 0, BM=at.rows, BN=at.columns, BK=at.depth, GROUP=GROUP_SIZE_M, PRECISION=precision(),
        **common, num_warps=at.warps, num_stages=at.stages if first else 2 * at.stages - 1,
    )  # fmt: skip
    if at.splits > 1:
        high, wide = min(next_power_of_2(rows), 16), min(next_power_of_2(outputs), 128)
        programs = -(-rows // high) * -(-outputs // wide)
        launch(
            kernels.sum_kernel, programs, x, shares, offset, y, rows, outputs, pixels, *places,
            BM=high, BN=wide, **common,
        )  # fmt: skip


def _run_in(x: Tensor, run: int) -> int:
    """How many neighbours of the sum are one aligned load of this input."""
    if x.stride(1) != 1:
        return 1
    run = min(run, 16 // x.itemsize)
    while any(x.stride(axis) % run for axis in (0, 2, 3) if x.shape[axis] > 1):
        run //= 2
    return run


def pack(x: Tensor, places: Tensor, y: Tensor) -> None:
    """``x (N, C, H, W)`` of any strides to ``y (N, kept, H, W)``, channels-last."""
    check_kernel_operand(x, "elimination", ALTERNATIVE)
    kept, (batch, _, height, width) = len(places), x.shape
    rows = batch * height * width
    # Neighbouring threads read neighbours in memory: pixels of a channel, or channels of a pixel.
    high, wide = (64, 32) if width > 1 and x.stride(3) == 1 else (16, 128)
    launch(
        kernels.pack_kernel, (-(-rows // high), -(-kept // wide)), x,
        x, places.contiguous(), y, rows, kept, height * width, width, *x.stride(),
        BM=high, BC=wide, INDEX=index_type(x, y),
    )  # fmt: skip

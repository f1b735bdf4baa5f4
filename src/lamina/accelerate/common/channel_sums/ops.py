"""Sums over the rows of a tensor: by a kernel where that is faster than PyTorch's reduction, which it replaces.

`benchmarks.ladder.channel_sums` compares both. Compilers fuse PyTorch's reduction with its neighbours, so they still
see it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.accelerate.common.channel_sums import kernels
from lamina.accelerate.common.tiling import MULTIPROCESSORS, clamp, next_power_of_2
from lamina.accelerate.runtime.eager_op import can_skip_dispatch
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.launch_cache import cached_launches
from lamina.accelerate.runtime.triton_ops import DTYPES, INTERPRETED, index_type, pdl_options
from lamina.errors import UnsupportedError

MIN_NUMEL = 2**18
"""Elements below which launch overhead decides, and PyTorch's reduction is one launch."""

PROGRAMS = 4 * MULTIPROCESSORS
"""Of the first launch, if there are enough rows: a few for each multiprocessor, which hide the latency of memory."""

_BLOCK = 4096
"""Elements that a program adds at a time."""


def channel_sums(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The sums ``(C)`` of ``x (N, C, L)`` over the other dimensions, in a dtype, added in float32 or wider.

    PyTorch's own reduction computes them where the kernel does not: of few elements, where channels are not contiguous,
    under a compiler or a transform, and where the sums are differentiated.
    """
    if _stride(x) is None or not _is_supported(x, dtype):
        return x.sum((0, 2), dtype=dtype)
    return run_channel_sums(x, dtype)


def _is_supported(x: Tensor, dtype: torch.dtype) -> bool:
    if torch.is_grad_enabled() or x.dtype not in DTYPES or dtype not in DTYPES or x.numel() < MIN_NUMEL:
        return False
    return can_skip_dispatch(x) and (x.is_cuda or INTERPRETED)


def _stride(x: Tensor) -> int | None:
    """Elements between rows with contiguous channels; None if there is no such stride."""
    (batch, channels, length), (outer, inner, stride) = x.shape, x.stride()
    if inner != 1 and channels > 1:
        return None
    if length == 1:
        return outer
    return stride if batch == 1 or outer == length * stride else None


@cached_launches
def run_channel_sums(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`channel_sums` by the kernel.

    Raises:
        UnsupportedError: channels are not contiguous, or rows have no common stride.
    """
    stride = _stride(x)
    if stride is None:
        raise UnsupportedError("channel sums: expected contiguous channels in rows of one stride")
    rows, channels = x.shape[0] * x.shape[2], x.shape[1]
    block_n = clamp(16, next_power_of_2(channels), 128)
    tiles, block_m = -(-channels // block_n), _BLOCK // block_n
    ranges = clamp(1, PROGRAMS // tiles, -(-rows // block_m))
    rows_per_program = -(-rows // (ranges * block_m)) * block_m
    ranges = max(1, -(-rows // rows_per_program))
    out = x.new_empty(channels, dtype=dtype)
    partials = out if ranges == 1 else x.new_empty(ranges, channels, dtype=torch.float32)
    _launch(x, partials, rows, channels, stride, rows_per_program, ranges, block_m, block_n)
    if ranges > 1:  # narrow tiles, so that several programs read the partial sums
        block_m = clamp(1, next_power_of_2(ranges), 128)
        _launch(partials, out, ranges, channels, channels, -(-ranges // block_m) * block_m, 1, block_m, 32)
    return out


def _launch(
    x: Tensor, out: Tensor, rows: int, channels: int, stride: int, rows_per_program: int, ranges: int, block_m: int,
    block_n: int,
) -> None:  # fmt: skip
    launch(
        kernels.channel_sums_kernel, ranges * -(-channels // block_n), x,
        x, out, rows, channels, stride, rows_per_program,
        BLOCK_M=block_m, BLOCK_N=block_n, UPCAST=INTERPRETED, INDEX=index_type(x), **pdl_options(x, out),
    )  # fmt: skip

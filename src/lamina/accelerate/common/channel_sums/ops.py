"""Sums over the rows of a tensor, as gradients of biases are, also behind ReLU.

A kernel replaces PyTorch's reduction where it is faster; `benchmarks.ladder.channel_sums` compares both. It adds the
split-K partials of a matmul too.
"""

from __future__ import annotations

from collections.abc import Sequence

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
"""Elements below which launch overhead decides, and PyTorch's reduction is one launch; of few rows, a quarter."""

FEW_ROWS = 256
"""Rows up to which one launch adds all: each of its programs has few channels instead of a range of rows."""

PROGRAMS = 2 * MULTIPROCESSORS
"""Of the first launch, if there are enough rows."""

BLOCK = 8192
"""Elements that a program adds at a time."""

MAX_BLOCK_M = 256
"""Rows that a program adds at a time: few sums of narrow channels would each be long."""

STAGES = 3
"""Blocks that are on their way to a program, which hide the latency of memory."""


def channel_sums(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The sums ``(C)`` of ``x (N, C, L)`` over the other dimensions, in a dtype, added in float32 or wider.

    PyTorch's own reduction computes them where the kernel does not: of few elements, where channels are not contiguous,
    under a compiler or a transform, and where the sums are differentiated.
    """
    if _stride(x) is None or not _is_supported(x, x.shape[1], dtype):
        return x.sum((0, 2), dtype=dtype if dtype.itemsize >= x.itemsize else x.dtype).to(dtype)
    return run_channel_sums(x, dtype)


def bias_gradient(dy: Tensor, channels_are_last: bool, dtype: torch.dtype) -> Tensor:
    """The sums of ``dy``, ``(..., C)`` if ``channels_are_last`` and else ``(N, C, ...)``, over all but the channels."""
    return channel_sums(_rows(dy, channels_are_last), dtype)


def relu_gradients(
    dy: Tensor, relu: Tensor | None, channels_are_last: bool, bias_dtype: torch.dtype | None
) -> tuple[Tensor, Tensor | None]:
    """Gradients of what a layer adds its bias to; and of the bias, if the same kernel makes them.

    Args:
        dy: gradients of the layer's output, ``(..., C)`` if ``channels_are_last`` and else ``(N, C, ...)``.
        relu: the output, if a ReLU is the layer's last step.
        channels_are_last: of the shape, whatever the strides are.
        bias_dtype: the dtype of the bias; None if its gradient is not needed.
    """
    if relu is None:
        return dy, None
    are_rows = dy.is_contiguous() or not channels_are_last  # else they would be a copy
    channels = dy.shape[-1] if channels_are_last else dy.shape[1]
    if are_rows and bias_dtype is not None and relu.dtype == dy.dtype and _is_supported(dy, channels, bias_dtype):
        masked = torch.empty_like(dy)
        rows, outputs, out = (_rows(each, channels_are_last) for each in (dy, relu, masked))
        if all(_stride(each) is not None for each in (rows, outputs, out)):
            return masked, run_relu_sums(rows, outputs, out, bias_dtype)
    return torch.ops.aten.threshold_backward(dy, relu, 0), None


def _rows(x: Tensor, channels_are_last: bool) -> Tensor:
    return x.reshape(-1, x.shape[-1], 1) if channels_are_last else x.flatten(2)


def _is_supported(x: Tensor, channels: int, dtype: torch.dtype) -> bool:
    if torch.is_grad_enabled() or x.dtype not in DTYPES or dtype not in DTYPES or not can_skip_dispatch(x):
        return False
    least = max(MIN_NUMEL // 4, 1) if x.numel() <= FEW_ROWS * channels else MIN_NUMEL
    return x.numel() >= least and (x.is_cuda or INTERPRETED)


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
    return _run(x, None, None, dtype)


@cached_launches
def run_relu_sums(dy: Tensor, relu: Tensor, masked: Tensor, dtype: torch.dtype) -> Tensor:
    """Write the gradients of ReLU's inputs, whose outputs are ``relu``, to ``masked``; the sums of these.

    Raises:
        UnsupportedError: channels are not contiguous, or rows have no common stride.
    """
    return _run(dy, relu, masked, dtype)


def _run(x: Tensor, relu: Tensor | None, masked: Tensor | None, dtype: torch.dtype) -> Tensor:
    strides = [_stride(x if each is None else each) for each in (x, relu, masked)]
    if None in strides:
        raise UnsupportedError("channel sums: expected contiguous channels in rows of one stride")
    rows, channels = x.shape[0] * x.shape[2], x.shape[1]
    if rows <= FEW_ROWS:
        block_m = next_power_of_2(max(rows, 1))
        block_n = clamp(16, next_power_of_2(-(-channels // PROGRAMS)), max(BLOCK // block_m, 16))
    else:
        block_n = clamp(16, next_power_of_2(channels), 128)
        block_m = min(MAX_BLOCK_M, BLOCK // block_n)
    tiles = -(-channels // block_n)
    ranges = clamp(1, PROGRAMS // tiles, -(-rows // block_m))
    rows_per_program = -(-rows // (ranges * block_m)) * block_m
    ranges = max(1, -(-rows // rows_per_program))
    out = x.new_empty(channels, dtype=dtype)
    partials = out if ranges == 1 else x.new_empty(ranges, channels, dtype=torch.float32)
    _launch(x, relu, masked, partials, rows, channels, strides, rows_per_program, ranges, block_m, block_n)
    if ranges > 1:  # narrow tiles, so that several programs read the partial sums
        block_m = clamp(1, next_power_of_2(ranges), 128)
        last = -(-ranges // block_m) * block_m
        _launch(partials, None, None, out, ranges, channels, [channels] * 3, last, 1, block_m, 32)
    return out


def _launch(
    x: Tensor, relu: Tensor | None, masked: Tensor | None, out: Tensor, rows: int, channels: int,
    strides: Sequence[int | None], rows_per_program: int, ranges: int, block_m: int, block_n: int,
) -> None:  # fmt: skip
    launch(
        kernels.channel_sums_kernel, ranges * -(-channels // block_n), x,
        x, x if relu is None else relu, x if masked is None else masked, out, rows, channels, *strides,
        rows_per_program, RELU=relu is not None, BLOCK_M=block_m, BLOCK_N=block_n, STAGES=STAGES, UPCAST=INTERPRETED,
        INDEX=index_type(x), **pdl_options(x, out),
    )  # fmt: skip

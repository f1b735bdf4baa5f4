"""The kernels as PyTorch operators. Backward passes use the library's dense operators.

The table ``columns`` holds the input of each column of a weight ``(out, kept)``: a feature, or ``channel * taps +
tap``. Without a table the inputs are a prefix, tap after tap. float32 products follow
``torch.backends.cuda.matmul.fp32_precision``, with 3xTF32 for full float32.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.common.channel_sums.ops import channel_sums
from lamina.accelerate.methods.elimination import launches
from lamina.accelerate.runtime.eager_op import without_dispatch
from lamina.errors import UsageError
from lamina.spec.shape import window_floor


def run_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, columns: Tensor | None, run: int, tile: list[int]
) -> Tensor:  # fmt: skip
    """``x[:, columns] @ weight.T + bias`` of ``x (rows, in)`` and ``weight (out, kept)``; ``columns`` is int32."""
    y = x.new_empty(x.shape[0], weight.shape[0])
    launches.linear(x, weight, bias, columns, y, run, tile)
    return y


linear = torch.library.custom_op("lamina::eliminated_linear", run_linear, mutates_args=())


def run_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, columns: Tensor | None, kernel: list[int], stride: list[int],
    padding: list[int], dilation: list[int], run: int, tile: list[int], last: bool,
) -> Tensor:  # fmt: skip
    """A convolution of ``x (N, in, H, W)`` by ``weight (out, kept)``, channels-last if ``last``; int32 ``columns``."""
    y = _output(x, weight, kernel, stride, padding, dilation, last)
    launches.product(x, weight, bias, columns, y, kernel, stride, padding, dilation, run, tile)
    return y


conv = torch.library.custom_op("lamina::eliminated_conv", run_conv, mutates_args=())


def run_pack(x: Tensor, index: Tensor) -> Tensor:
    """``x[:, index]`` of ``x (N, C, H, W)`` with any strides, in channels-last."""
    y = _packed(x, index)
    launches.pack(x, index, y)
    return y


pack = torch.library.custom_op("lamina::eliminated_pack", run_pack, mutates_args=())


def _packed(x: Tensor, index: Tensor) -> Tensor:
    shape = (x.shape[0], len(index), *x.shape[2:])
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def channels_last(x: Tensor) -> bool:
    """Whether an image is channels-last and not contiguous."""
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def _output(
    x: Tensor, weight: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], last: bool
) -> Tensor:
    sizes = [
        window_floor(size, taps, step, pad, spacing)
        for size, taps, step, pad, spacing in zip(x.shape[2:], kernel, stride, padding, dilation, strict=True)
    ]
    if min(sizes) < 1:
        raise UsageError(f"convolution: expected an image of at least the kernel's size, got {tuple(x.shape)}")
    layout = torch.channels_last if last else torch.contiguous_format
    shape = (x.shape[0], weight.shape[0], *sizes)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)


@linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, columns: Tensor | None, run: int, tile: list[int]) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


@conv.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, columns: Tensor | None, kernel: list[int], stride: list[int],
    padding: list[int], dilation: list[int], run: int, tile: list[int], last: bool,
) -> Tensor:  # fmt: skip
    return _output(x, weight, kernel, stride, padding, dilation, last)


@pack.register_fake
def _(x: Tensor, index: Tensor) -> Tensor:
    return _packed(x, index)


def _table(columns: Tensor | None, weight: Tensor, taps: int = 1) -> Tensor:
    """The table ``columns``, or that of a prefix."""
    if columns is not None:
        return columns.long()
    first = torch.arange(weight.shape[1] // taps, device=weight.device)
    every = torch.arange(taps, device=weight.device)
    return (first[None, :] * taps + every[:, None]).flatten()


def _linear_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, columns, *_ = inputs
    ctx.biased = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight, columns)


def _linear_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, columns = ctx.saved_tensors
    for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
    table = _table(columns, weight)
    dx = torch.zeros_like(x).index_copy(1, table, dy @ weight) if for_x else None
    dw = dy.mT @ x.index_select(1, table) if for_weight else None
    db = channel_sums(dy[..., None], ctx.biased) if for_bias and ctx.biased is not None else None
    return dx, dw, db, None, None, None


def _conv_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, columns, ctx.kernel, ctx.stride, ctx.padding, ctx.dilation, *_ = inputs
    ctx.biased = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight, columns)


def _conv_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, columns = ctx.saved_tensors
    inputs, taps = x.shape[1], torch.Size(ctx.kernel).numel()
    table = _table(columns, weight, taps)
    full = weight.new_zeros(weight.shape[0], inputs * taps).index_copy(1, table, weight)
    full = full.unflatten(1, (inputs, *ctx.kernel))
    if x.device.type == "cpu" and max(ctx.stride) > taps == 1:
        x, dy = x.contiguous(), dy.contiguous()  # oneDNN writes beyond its memory in channels-last, on some processors
    wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], False]
    dx, dw, _ = torch.ops.aten.convolution_backward(
        dy, x, full, None, ctx.stride, ctx.padding, ctx.dilation, False, [0, 0], 1, wanted
    )
    dw = dw.flatten(1).index_select(1, table) if ctx.needs_input_grad[1] else None
    for_bias = ctx.needs_input_grad[2] and ctx.biased is not None
    db = channel_sums(dy.flatten(2), ctx.biased) if for_bias else None
    return dx if ctx.needs_input_grad[0] else None, dw, db, *[None] * 8


def _pack_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, index = inputs
    ctx.channels = x.shape[1]
    ctx.save_for_backward(index)


def _pack_backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
    (index,) = ctx.saved_tensors
    dx = dy.new_zeros(dy.shape[0], ctx.channels, *dy.shape[2:])
    return dx.index_copy(1, index, dy), None


linear.register_autograd(_linear_backward, setup_context=_linear_setup)
conv.register_autograd(_conv_backward, setup_context=_conv_setup)
pack.register_autograd(_pack_backward, setup_context=_pack_setup)

linear_eager = without_dispatch(linear, run_linear, _linear_setup, _linear_backward)
conv_eager = without_dispatch(conv, run_conv, _conv_setup, _conv_backward)
pack_eager = without_dispatch(pack, run_pack, _pack_setup, _pack_backward)


@register_flop_formula(torch.ops.lamina.eliminated_linear)
def _(x: torch.Size, weight: torch.Size, *args: Any, **kwargs: Any) -> int:
    return 2 * x[0] * weight[0] * weight[1]


@register_flop_formula(torch.ops.lamina.eliminated_conv)
def _(x: torch.Size, weight: torch.Size, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    pixels: int = out_shape[0] * out_shape[2] * out_shape[3]
    return 2 * pixels * weight[0] * weight[1]

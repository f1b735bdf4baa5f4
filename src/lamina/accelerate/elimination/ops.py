"""The kernel as PyTorch operators, with derivatives by the library's dense ones.

A table ``columns`` names the input of each column of a weight ``(out, kept)``: a feature, or ``channel * taps + tap``.
float32 products follow ``torch.backends.cuda.matmul.allow_tf32``, as the library's do: three TF32 products keep
float32 accuracy.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.elimination import kernels
from lamina.accelerate.elimination.tiles import Tile, product_tile
from lamina.accelerate.ops import INTERPRETED, SHARING, check_device, index_type, launch, precision
from lamina.accelerate.tiling import power
from lamina.errors import UnsupportedError, UsageError
from lamina.spec.shape import window_floor

MOST_TAPS = 31
"""Of a window: which of them lie inside the image is kept in the bits of one number."""

INSTEAD = 'use impl="gather"'


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


def _run(
    x: Tensor, weight: Tensor, bias: Tensor | None, columns: Tensor, y: Tensor,
    kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], run: int, tile: list[int],
) -> None:  # fmt: skip
    """``x (N, C, H, W)`` and ``y (N, out, H', W')`` of any strides."""
    check_device(x, "elimination", INSTEAD)
    check_taps(kernel)
    weight, columns = weight.contiguous(), columns.contiguous()
    (batch, _, height, width), (outputs, summed) = x.shape, weight.shape
    pixels = y.shape[2] * y.shape[3]
    rows = batch * pixels
    at = Tile.unpack(tile) if tile else product_tile(rows, outputs, summed, x.itemsize)
    shares = x.new_empty((at.splits, rows, outputs) if at.splits > 1 else 0, dtype=torch.float32)
    reach = [
        step * (size - 1) + spacing * (taps - 1) - 2 * margin
        for step, size, spacing, taps, margin in zip(stride, y.shape[2:], dilation, kernel, padding, strict=True)
    ]
    inside = padding == [0, 0] and reach[0] < height and reach[1] < width
    common = {
        "BIAS": bias is not None, "SPLITS": at.splits, "UPCAST": INTERPRETED,
        "INDEX": index_type(x, weight, y, shares),
    }  # fmt: skip
    places = y.stride(0), y.stride(1), y.stride(3)
    offset = y if bias is None else bias.contiguous()
    launch(
        kernels.product_kernel, -(-rows // at.rows) * -(-outputs // at.columns) * at.splits, x,
        x, weight, offset, columns, y, shares, rows, outputs, summed, pixels, y.shape[3], height, width,
        *x.stride(), summed, *places,
        KH=kernel[0], KW=kernel[1], SH=stride[0], SW=stride[1], PH=padding[0], PW=padding[1],
        DH=dilation[0], DW=dilation[1], INSIDE=inside, RUN=_run_in(x, run), EVEN=summed % at.depth == 0,
        BM=at.rows, BN=at.columns, BK=at.depth, GROUP=SHARING, PRECISION=precision(),
        **common, num_warps=at.warps, num_stages=at.stages,
    )  # fmt: skip
    if at.splits > 1:
        high, wide = min(power(rows), 16), min(power(outputs), 128)
        programs = -(-rows // high) * -(-outputs // wide)
        launch(
            kernels.sum_kernel, programs, x, shares, offset, y, rows, outputs, pixels, *places,
            BM=high, BN=wide, **common,
        )  # fmt: skip


def _run_in(x: Tensor, run: int) -> int:
    """How many neighbours of the table are one aligned load of this input."""
    if x.stride(1) != 1:
        return 1
    run = min(run, 16 // x.itemsize)
    while any(x.stride(axis) % run for axis in (0, 2, 3) if x.shape[axis] > 1):
        run //= 2
    return run


@torch.library.custom_op("lamina::eliminated_linear", mutates_args=())
def linear(x: Tensor, weight: Tensor, bias: Tensor | None, columns: Tensor, run: int, tile: list[int]) -> Tensor:
    """``x[:, columns] @ weight.T + bias`` of ``x (rows, in)`` and ``weight (out, kept)``; ``columns`` is int32."""
    y = x.new_empty(x.shape[0], weight.shape[0])
    one, none = [1, 1], [0, 0]
    _run(x[..., None, None], weight, bias, columns, y[..., None, None], one, one, none, one, run, tile)
    return y


@torch.library.custom_op("lamina::eliminated_conv", mutates_args=())
def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, columns: Tensor,
    kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], run: int, tile: list[int],
) -> Tensor:  # fmt: skip
    """A convolution of ``x (N, in, H, W)`` by ``weight (out, kept)``; ``columns`` is int32."""
    y = _output(x, weight, kernel, stride, padding, dilation)
    _run(x, weight, bias, columns, y, kernel, stride, padding, dilation, run, tile)
    return y


def _output(
    x: Tensor, weight: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    sizes = [
        window_floor(size, taps, step, margin, spacing)
        for size, taps, step, margin, spacing in zip(x.shape[2:], kernel, stride, padding, dilation, strict=True)
    ]
    if min(sizes) < 1:
        raise UsageError(f"convolution: expected an image of at least its window, got {tuple(x.shape)}")
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    layout = torch.channels_last if last else torch.contiguous_format
    shape = (x.shape[0], weight.shape[0], *sizes)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)


@linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, columns: Tensor, run: int, tile: list[int]) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


@conv.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, columns: Tensor,
    kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], run: int, tile: list[int],
) -> Tensor:  # fmt: skip
    return _output(x, weight, kernel, stride, padding, dilation)


def _linear_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, columns, *_ = inputs
    ctx.biased = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight, columns)


def _linear_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, columns = ctx.saved_tensors
    for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
    dx = torch.zeros_like(x).index_copy(1, columns.long(), dy @ weight) if for_x else None
    dw = dy.mT @ x.index_select(1, columns) if for_weight else None
    db = dy.sum(0).to(ctx.biased) if for_bias and ctx.biased is not None else None
    return dx, dw, db, None, None, None


def _conv_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, columns, ctx.kernel, ctx.stride, ctx.padding, ctx.dilation, *_ = inputs
    ctx.biased = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight, columns)


def _conv_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, columns = ctx.saved_tensors
    inputs, taps = x.shape[1], torch.Size(ctx.kernel).numel()
    full = weight.new_zeros(weight.shape[0], inputs * taps).index_copy(1, columns.long(), weight)
    full = full.unflatten(1, (inputs, *ctx.kernel))
    wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], False]
    dx, dw, _ = torch.ops.aten.convolution_backward(
        dy, x, full, None, ctx.stride, ctx.padding, ctx.dilation, False, [0, 0], 1, wanted
    )
    dw = dw.flatten(1).index_select(1, columns) if ctx.needs_input_grad[1] else None
    for_bias = ctx.needs_input_grad[2] and ctx.biased is not None
    db = dy.sum((0, 2, 3)).to(ctx.biased) if for_bias else None
    return dx if ctx.needs_input_grad[0] else None, dw, db, None, None, None, None, None, None, None


linear.register_autograd(_linear_backward, setup_context=_linear_setup)
conv.register_autograd(_conv_backward, setup_context=_conv_setup)


@register_flop_formula(torch.ops.lamina.eliminated_linear)
def _(x: torch.Size, weight: torch.Size, *args: Any, **kwargs: Any) -> int:
    return 2 * x[0] * weight[0] * weight[1]


@register_flop_formula(torch.ops.lamina.eliminated_conv)
def _(x: torch.Size, weight: torch.Size, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    pixels: int = out_shape[0] * out_shape[2] * out_shape[3]
    return 2 * pixels * weight[0] * weight[1]

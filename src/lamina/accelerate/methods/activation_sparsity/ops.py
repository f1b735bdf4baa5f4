"""PyTorch operators with derivatives for products that skip zeros.

Weights come as ``at (taps * C, M)``, a row for each row of the im2col matrix, so that what a non-zero is multiplied by
is contiguous. Float32 products on tensor cores follow ``torch.backends.cuda.matmul.allow_tf32`` as the library's do:
without TF32, split-fp16 keeps float32 accuracy.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.common.channel_sums.ops import channel_sums
from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.methods.activation_sparsity.ellpack import cuda
from lamina.accelerate.methods.activation_sparsity.ellpack.ops import nonzero_product, to_ellpack
from lamina.accelerate.methods.activation_sparsity.im2col import POINTWISE, matrix_as_map, output_like
from lamina.accelerate.methods.activation_sparsity.row_union.ops import masked_product, row_union_product
from lamina.accelerate.methods.activation_sparsity.row_union.split_fp16.ops import split_terms

WEIGHT_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def product(
    at: Tensor, bias: Tensor | None, x: Tensor, window: Conv2dGeometry, impl: str, stored: str = "same"
) -> Tensor:
    """The convolution of ``x`` by one of the kernels, in the memory format of ``x``.

    ``at`` is ``(taps * C, M)``, for ``row_union`` also ``(taps, C, M)``. ``stored`` is the dtype in which ``nonzero``
    reads weights.
    """
    y = output_like(x, at.shape[-1], window)
    if impl != "nonzero":
        return row_union_product(at, bias, x, y, window, terms=split_terms(x, impl == "row_union_fp16"))
    at = cuda.weights(at, WEIGHT_DTYPES.get(stored, at.dtype))[:, : at.shape[1]]
    panel = cuda.product_tile(y.shape[1], y.numel() // max(y.shape[1], 1), at.itemsize).panel
    return nonzero_product(at, bias, to_ellpack(x, panel=panel), y, (x.shape[2], x.shape[3]), window)


def transposed_weight(weight: Tensor, stored: str = "same") -> Tensor:
    """A convolution's weight ``(M, C, KH, KW)`` transposed to ``(taps * C, M)`` and cast, in one pass."""
    by_tap = weight.permute(2, 3, 1, 0)
    at = by_tap.new_empty(by_tap.shape, dtype=WEIGHT_DTYPES.get(stored, weight.dtype))
    return at.copy_(by_tap).flatten(0, 2)


def weight_rows(weight: Tensor, impl: str, stored: str) -> Tensor:
    """A convolution's weight as an implementation reads it: a copy ``(taps * C, M)``, or a view ``(taps, C, M)``."""
    return transposed_weight(weight, stored) if impl == "nonzero" else weight.flatten(2).permute(2, 1, 0)


@torch.library.custom_op("lamina::sparse_conv", mutates_args=())
def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, window: list[int], forward: str, data: str, stored: str
) -> Tensor:
    """A convolution of ``x (N, C, H, W)`` by ``weight (M, C, KH, KW)``.

    ``forward`` and ``data`` are the implementations of the forward pass and of the gradient of ``x``; the gradient of
    the weight is the library's.
    """
    steps = Conv2dGeometry(*window)
    if forward == "dense":
        return torch.convolution(x, weight, bias, *_dense_steps(steps))
    return product(weight_rows(weight, forward, stored), bias, x, steps, forward, stored)


@torch.library.custom_op("lamina::sparse_linear", mutates_args=())
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, forward: str, data: str, weights: str, stored: str
) -> Tensor:
    """``x W^T + b`` of ``x (rows, in)``, with an implementation for each phase."""
    if forward == "dense":
        return F.linear(x, weight, bias)
    return product(weight.mT, bias, x[..., None, None], POINTWISE, forward, stored)[..., 0, 0]


@torch.library.custom_op("lamina::sparse_matmul", mutates_args=())
def matmul(a: Tensor, b: Tensor, impl: str, stored: str, masked: bool) -> Tensor:
    """``a (M, K) @ b (K, N)`` that skips the zeros of ``b``; if ``masked``, so does the gradient of ``b``."""
    if impl == "dense":
        return a @ b
    return product(a.mT, None, matrix_as_map(b), POINTWISE, impl, stored)[0, :, 0]


@matmul.register_fake
def _(a: Tensor, b: Tensor, impl: str, stored: str, masked: bool) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


@torch.library.custom_op("lamina::sparse_masked_matmul", mutates_args=())
def masked_matmul(at: Tensor, dc: Tensor, b: Tensor) -> Tensor:
    """``at (K, M) @ dc (M, N)`` where ``b (K, N)`` is not zero, and zero elsewhere."""
    return masked_product(at, b, dc)


@masked_matmul.register_fake
def _(at: Tensor, dc: Tensor, b: Tensor) -> Tensor:
    return dc.new_empty(b.shape)


def _matmul_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, ctx.impl, ctx.stored, ctx.masked = inputs
    ctx.save_for_backward(a, b)


def _matmul_backward(ctx: Any, dc: Tensor) -> tuple[Tensor | None, ...]:
    a, b = ctx.saved_tensors
    da = matmul(dc, b.mT, ctx.impl, ctx.stored, False) if ctx.needs_input_grad[0] else None
    db = None
    if ctx.needs_input_grad[1]:
        db = masked_matmul(a.mT, dc, b) if ctx.masked else a.mT @ dc
    return da, db, None, None, None


matmul.register_autograd(_matmul_backward, setup_context=_matmul_setup)


@conv.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, window: list[int], forward: str, data: str, stored: str
) -> Tensor:
    if forward == "dense":
        return torch.convolution(x, weight, bias, *_dense_steps(Conv2dGeometry(*window)))
    return output_like(x, weight.shape[0], Conv2dGeometry(*window))


@linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, forward: str, data: str, weights: str, stored: str) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def _conv_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, ctx.window, _, ctx.data, ctx.stored = inputs
    ctx.biased = None if bias is None else [bias.shape[0]]
    ctx.save_for_backward(x, weight)


def _conv_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    window = Conv2dGeometry(*ctx.window)
    needed = list(ctx.needs_input_grad[:3])
    dx = None
    if needed[0] and ctx.data != "dense":
        dx = conv_data(dy, weight, list(x.shape), ctx.window, ctx.data, ctx.stored)
        needed[0] = False
    needed[2] = needed[2] and ctx.biased is not None
    rest = [None, None, None]
    if any(needed):
        rest = list(torch.ops.aten.convolution_backward(dy, x, weight, ctx.biased, *_dense_steps(window), needed))
    return dx if dx is not None else rest[0], rest[1], rest[2], None, None, None, None


@torch.library.custom_op("lamina::sparse_conv_data", mutates_args=())
def conv_data(dy: Tensor, weight: Tensor, shape: list[int], window: list[int], impl: str, stored: str) -> Tensor:
    """The input gradient ``shape`` of a convolution of stride 1, skipping the zeros of ``dy``."""
    at = weight_rows(weight.flip(2, 3).transpose(0, 1), impl, stored)
    return product(at, None, dy, Conv2dGeometry(*window).transposed(), impl, stored)


@conv_data.register_fake
def _(dy: Tensor, weight: Tensor, shape: list[int], window: list[int], impl: str, stored: str) -> Tensor:
    return output_like(dy, weight.shape[1], Conv2dGeometry(*window).transposed())


def _linear_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, _, ctx.data, ctx.weights, ctx.stored = inputs
    ctx.biased = bias is not None
    ctx.save_for_backward(x, weight)


def _linear_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
    # dx = linear(dy, W^T) and dw^T = linear(x^T, dy^T), so that both skip the zeros of their first operand.
    dx = linear(dy, weight.mT, None, ctx.data, "dense", "dense", ctx.stored) if needs_x else None
    dw = None
    if needs_weight and ctx.weights == "dense":
        dw = dy.mT @ x
    elif needs_weight:
        dw = linear(x.mT, dy.mT, None, ctx.weights, "dense", "dense", ctx.stored).mT
    db = channel_sums(dy[..., None], dy.dtype) if needs_bias and ctx.biased else None
    return dx, dw, db, None, None, None, None


conv.register_autograd(_conv_backward, setup_context=_conv_setup)
linear.register_autograd(_linear_backward, setup_context=_linear_setup)


@register_flop_formula(torch.ops.lamina.sparse_matmul)
def _(a: torch.Size, b: torch.Size, *args: Any, **kwargs: Any) -> int:
    return 2 * a[0] * a[1] * b[1]


@register_flop_formula(torch.ops.lamina.sparse_masked_matmul)
def _(at: torch.Size, dc: torch.Size, *args: Any, **kwargs: Any) -> int:
    return 2 * at[0] * at[1] * dc[1]


@register_flop_formula(torch.ops.lamina.sparse_conv)
def _(x: torch.Size, weight: torch.Size, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Those of the dense layer: how many are skipped depends on the data."""
    operations: int = 2 * out_shape.numel() * weight[1:].numel()
    return operations


@register_flop_formula(torch.ops.lamina.sparse_conv_data)
def _(dy: torch.Size, weight: torch.Size, *args: Any, **kwargs: Any) -> int:
    return 2 * dy.numel() * weight[1:].numel()


@register_flop_formula(torch.ops.lamina.sparse_linear)
def _(x: torch.Size, weight: torch.Size, *args: Any, **kwargs: Any) -> int:
    return 2 * x[0] * weight[0] * weight[1]


def _dense_steps(window: Conv2dGeometry) -> tuple[Any, ...]:
    _, _, sh, sw, ph, pw, dh, dw = window.pack()
    return [sh, sw], [ph, pw], [dh, dw], False, [0, 0], 1

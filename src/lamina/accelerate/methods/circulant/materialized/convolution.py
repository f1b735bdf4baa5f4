"""Convolutions with materialized circulant blocks in split fp16, as PyTorch operators.

The convolution and its two gradients are the partial derivatives of one trilinear form, so gradients of any order are
again these operators. Rows are ``x (N, C, L)`` of any strides, weights ``w (P, taps, q, k)`` of the same dtype; ``signs
(k)``, if given, multiply the columns of each block. The split operands of the forward pass are saved for backward
beside the tensors that they were split from.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.common.split_fp16.kernels import TARGET_EXPONENT, conv_cost
from lamina.accelerate.common.split_fp16.ops import (
    partial_amax,
    run_amax,
    run_split,
    split_fp16_conv,
    split_fp16_conv_backward_weight,
)
from lamina.accelerate.methods.circulant.materialized import kernels
from lamina.accelerate.methods.circulant.materialized.ops import (
    is_matrix_channels_last,
    run_dense_matrix,
    run_diagonal_sums,
)
from lamina.accelerate.methods.circulant.ops import empty_rows, is_channels_last
from lamina.accelerate.runtime.eager_op import call_in_backward, without_dispatch
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.launch_cache import cached_launches
from lamina.accelerate.runtime.replay import register_kernel
from lamina.accelerate.runtime.triton_ops import check_kernel_operand, index_type, precision

_BLOCK = 1024
"""Elements of the dense matrix per program."""

SplitOperand = tuple[Tensor, Tensor | None]
"""The terms, and the partial amaxes that determine their scale."""


def num_terms() -> int:
    """The fp16 terms of a float32 element: one, with the precision of TF32, where TF32 is allowed, else two."""
    return 1 if precision() == "tf32" else 2


def _is_own_split(x: Tensor) -> bool:
    """Whether the rows are 16-bit and channels-last, so that they need no copy."""
    return x.dtype != torch.float32 and is_matrix_channels_last(x)


def _rows(x: Tensor) -> SplitOperand:
    if _is_own_split(x):
        return x.mT.reshape(1, -1, x.shape[1]), None
    if x.dtype != torch.float32:
        return run_split(x, None, 1), None
    x = x if is_matrix_channels_last(x) else x.contiguous()
    amax = run_amax(x)
    return run_split(x, amax, num_terms()), amax


def _weights(w: Tensor, signs: Tensor | None, window: Conv2dProblem, channels: int, outputs: int) -> SplitOperand:
    inputs, w = channels // window.groups, w.contiguous()
    if w.dtype != torch.float32:
        return run_dense_matrix(w, signs, outputs, inputs, window.groups, True).mT[None], None
    (rows, taps, q, k), amax = w.shape, run_amax(w)
    out = w.new_empty(num_terms(), outputs, taps, inputs, dtype=torch.float16)
    launch(
        kernels.split_dense_matrix_kernel, -(-out[0].numel() // _BLOCK), w,
        w, w if signs is None else signs, amax, out, out[0].numel(),
        outputs // window.groups, inputs, rows // window.groups, q,
        TAPS=taps, K=k, BLOCK=_BLOCK, SIGN_FLIPS=signs is not None, TERMS=num_terms(), PARTIALS=amax.numel(),
        TARGET_EXPONENT=TARGET_EXPONENT, INDEX=index_type(w, out),
    )  # fmt: skip
    return out, amax


def _output_like(x: Tensor, outputs: int, window: Conv2dProblem) -> Tensor:
    return empty_rows(x, (x.shape[0], outputs, window.out_height * window.out_width), is_channels_last(x), x.dtype)


def _empty(x: Tensor) -> Tensor:
    return x.new_empty(0)


def _is_given(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.numel() > 0


@torch.library.custom_op("lamina::circulant_materialized_conv", mutates_args=())
def conv(
    x: Tensor, w: Tensor, signs: Tensor | None, bias: Tensor | None, outputs: int, window: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``(N, outputs, L')`` in the memory format of ``x``; split rows and weights with amaxes, or empty tensors."""
    return _conv(x, w, signs, bias, outputs, tuple(window))


@cached_launches
def _conv(
    x: Tensor, w: Tensor, signs: Tensor | None, bias: Tensor | None, outputs: int, window: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    check_kernel_operand(x, "circulant", 'use impl="reference"')
    sizes = Conv2dProblem.unpack(window)
    y = _output_like(x, outputs, sizes)
    (xh, x_amax), (wh, w_amax) = _rows(x), _weights(w, signs, sizes, x.shape[1], outputs)
    split_fp16_conv(xh, x_amax, wh, w_amax, None if bias is None else bias.contiguous(), y, sizes, backward_data=False)
    if x_amax is None or w_amax is None:
        return y, _empty(x) if _is_own_split(x) else xh, _empty(x), wh, _empty(x)
    return y, xh, x_amax, wh, w_amax


@conv.register_fake
def _(
    x: Tensor, w: Tensor, signs: Tensor | None, bias: Tensor | None, outputs: int, window: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    sizes = Conv2dProblem.unpack(window)
    y = _output_like(x, outputs, sizes)
    rows, matrix = (x.shape[0] * x.shape[2], x.shape[1]), (outputs, sizes.taps, x.shape[1] // sizes.groups)
    if x.dtype != torch.float32:
        xh = _empty(x) if _is_own_split(x) else x.new_empty(1, *rows)
        return y, xh, _empty(x), w.new_empty(1, *matrix), _empty(x)
    xh, wh = (x.new_empty(num_terms(), *shape, dtype=torch.float16) for shape in (rows, matrix))
    return y, xh, partial_amax(x), wh, partial_amax(w)


@torch.library.custom_op("lamina::circulant_materialized_conv_backward", mutates_args=())
def conv_backward(
    dy: Tensor, x: Tensor, w: Tensor, signs: Tensor | None,
    xh: Tensor | None, x_amax: Tensor | None, wh: Tensor | None, w_amax: Tensor | None,
    window: list[int], data: bool, weight: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of `conv` with respect to ``x`` (``data``) and ``w`` (``weight``), from its split operands if given."""
    return _conv_backward(dy, x, w, signs, xh, x_amax, wh, w_amax, tuple(window), data, weight)


@cached_launches
def _conv_backward(
    dy: Tensor, x: Tensor, w: Tensor, signs: Tensor | None,
    xh: Tensor | None, x_amax: Tensor | None, wh: Tensor | None, w_amax: Tensor | None,
    window: tuple[int, ...], data: bool, weight: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    sizes, (_, _, _, k) = Conv2dProblem.unpack(window), w.shape
    dyh, dy_amax = _rows(dy)
    dx, dw = _gradients_like(x, w, data, weight)
    if data:
        saved = (wh, w_amax if _is_given(w_amax) else None)
        operand = saved if _is_given(wh) else _weights(w, signs, sizes, x.shape[1], dy.shape[1])
        split_fp16_conv(dyh, dy_amax, *operand, None, dx, sizes, backward_data=True)  # type: ignore[arg-type]
    if weight:
        operand = (xh, x_amax if _is_given(x_amax) else None) if _is_given(xh) else _rows(x)
        dense = split_fp16_conv_backward_weight(dyh, dy_amax, *operand, sizes)  # type: ignore[arg-type]
        dw = run_diagonal_sums(dense.mT, signs, k, sizes.groups).to(w.dtype)
    return dx, dw


def _gradients_like(x: Tensor, w: Tensor, data: bool, weight: bool) -> tuple[Tensor, Tensor]:
    batch, channels, length = x.shape
    dx = empty_rows(x, (batch, channels, length), is_channels_last(x), x.dtype) if data else _empty(x)
    return dx, w.new_empty(w.shape) if weight else _empty(w)


@conv_backward.register_fake
def _(
    dy: Tensor, x: Tensor, w: Tensor, signs: Tensor | None,
    xh: Tensor | None, x_amax: Tensor | None, wh: Tensor | None, w_amax: Tensor | None,
    window: list[int], data: bool, weight: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _gradients_like(x, w, data, weight)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, w, signs, _, _, ctx.window = inputs
    ctx.save_for_backward(x, w, signs, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _conv_gradient(ctx: Any, g: Tensor | None, *_: Any) -> tuple[Any, ...]:
    if g is None:
        return (None,) * 6
    (x, w, signs, *saved), (data, weight, _, bias, *_) = ctx.saved_tensors, ctx.needs_input_grad
    dx = dw = None
    if data or weight:
        arguments = g, x, w, signs, *saved, tuple(ctx.window), data, weight
        dx, dw = call_in_backward(conv_backward, _conv_backward, *arguments)
    return dx if data else None, dw if weight else None, None, g.sum((0, 2)) if bias else None, None, None


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.window, ctx.data, ctx.weight = inputs
    ctx.save_for_backward(*tensors[:4])
    ctx.set_materialize_grads(False)


def _backward_gradient(ctx: Any, hx: Tensor | None, hw: Tensor | None) -> tuple[Any, ...]:
    (dy, x, w, signs), (for_dy, for_x, for_w, *_) = ctx.saved_tensors, ctx.needs_input_grad
    hx, hw = (hx if ctx.data else None), (hw if ctx.weight else None)
    for_x, for_w = for_x and hw is not None, for_w and hx is not None
    ddy = dx = dw = None
    if for_dy:
        pairs = [(hx, w)] * (hx is not None) + [(x, hw)] * (hw is not None)
        ddy = sum(conv(a, b, signs, None, dy.shape[1], ctx.window)[0] for a, b in pairs) if pairs else None
    if for_x or for_w:
        dx, dw = conv_backward(
            dy, x if hx is None else hx, w if hw is None else hw, signs, *(None,) * 4, ctx.window, for_x, for_w
        )
    return ddy, dx if for_x else None, dw if for_w else None, *(None,) * 8


conv.register_autograd(_conv_gradient, setup_context=_save)
conv_eager = without_dispatch(conv, _conv, _save, _conv_gradient)
register_kernel(conv_backward, _conv_backward)
conv_backward.register_autograd(_backward_gradient, setup_context=_save_backward)


def _flops(outputs: int, inputs: int, window: list[int]) -> int:
    """FLOPs of a dense convolution, however many fp16 products emulate one."""
    sizes = Conv2dProblem.unpack(window)
    return conv_cost(sizes.rows_out, outputs, inputs // sizes.groups, sizes.taps, terms=1).flops


@register_flop_formula(torch.ops.lamina.circulant_materialized_conv)
def _(x: Any, w: Any, signs: Any, bias: Any, outputs: int, window: list[int], *_: Any, **__: Any) -> int:
    return _flops(outputs, x[1], window)


@register_flop_formula(torch.ops.lamina.circulant_materialized_conv_backward)
def _(dy: Any, x: Any, w: Any, *rest: Any, **__: Any) -> int:
    *_, window, data, weight = rest
    return int(data + weight) * _flops(dy[1], x[1], window)

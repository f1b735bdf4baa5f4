"""Convolutions with circulant blocks written out as float16 halves, as PyTorch operators.

The convolution and its two gradients are the slices of one trilinear form, so gradients of any order are again these
operators. Rows come as ``x (N, C, L)`` of any strides, weights as ``w (P, taps, q, k)``, in one type; ``signs (k)``, if
any, multiply the columns of each block. Halves that the
forward pass has laid down are handed to the backward pass beside the tensors they were made from.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.common.split_fp16.kernels import TOP, conv_cost
from lamina.accelerate.common.split_fp16.ops import gradient, peaks, product, run_peaks, run_split
from lamina.accelerate.methods.circulant.materialized import kernels
from lamina.accelerate.methods.circulant.materialized.ops import is_last, run_diagonal_sums, run_materialise
from lamina.accelerate.methods.circulant.ops import empty_rows, is_channels_last
from lamina.accelerate.methods.circulant.window import Window
from lamina.accelerate.runtime.eager_op import direct, in_backward
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.launch_cache import taped
from lamina.accelerate.runtime.triton_ops import check_device, index_type, precision

_GRAIN = 1024
"""Numbers that a program writes out."""

Halves = tuple[Tensor, Tensor | None]
"""Parts, and the peaks that scale them."""


def parts() -> int:
    """Halves of a float32 number: one keeps as much as TF32."""
    return 1 if precision() == "tf32" else 2


def _view(x: Tensor) -> bool:
    """Whether rows are their own halves."""
    return x.dtype != torch.float32 and is_last(x)


def _rows(x: Tensor) -> Halves:
    if _view(x):
        return x.mT.reshape(1, -1, x.shape[1]), None
    if x.dtype != torch.float32:
        return run_split(x, None, 1), None
    x = x if is_last(x) else x.contiguous()
    largest = run_peaks(x)
    return run_split(x, largest, parts()), largest


def _weights(w: Tensor, signs: Tensor | None, window: Window, channels: int, outputs: int) -> Halves:
    inputs, w = channels // window.groups, w.contiguous()
    if w.dtype != torch.float32:
        return run_materialise(w, signs, outputs, inputs, window.groups, True).mT[None], None
    (rows, taps, q, k), largest = w.shape, run_peaks(w)
    out = w.new_empty(parts(), outputs, taps, inputs, dtype=torch.float16)
    launch(
        kernels.materialise_halves_kernel, -(-out[0].numel() // _GRAIN), w,
        w, w if signs is None else signs, largest, out, out[0].numel(),
        outputs // window.groups, inputs, rows // window.groups, q,
        TAPS=taps, K=k, BLOCK=_GRAIN, SIGNED=signs is not None, PARTS=parts(), SHARES=largest.numel(), TOP=TOP,
        INDEX=index_type(w, out),
    )  # fmt: skip
    return out, largest


def _output_like(x: Tensor, outputs: int, window: Window) -> Tensor:
    return empty_rows(x, (x.shape[0], outputs, window.out_height * window.out_width), is_channels_last(x), x.dtype)


def _nothing(x: Tensor) -> Tensor:
    return x.new_empty(0)


def _given(made: Tensor | None) -> bool:
    return made is not None and made.numel() > 0


@torch.library.custom_op("lamina::circulant_conv", mutates_args=())
def conv(
    x: Tensor, w: Tensor, signs: Tensor | None, bias: Tensor | None, outputs: int, window: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``(N, outputs, L')`` in the layout of ``x``; and halves and peaks of rows and of weights, where there are any."""
    return _conv(x, w, signs, bias, outputs, tuple(window))


@taped
def _conv(
    x: Tensor, w: Tensor, signs: Tensor | None, bias: Tensor | None, outputs: int, window: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    check_device(x, "circulant", 'use impl="reference"')
    sizes = Window.unpack(window)
    y = _output_like(x, outputs, sizes)
    (xh, x_peaks), (wh, w_peaks) = _rows(x), _weights(w, signs, sizes, x.shape[1], outputs)
    product(xh, x_peaks, wh, w_peaks, None if bias is None else bias.contiguous(), y, sizes, back=False)
    if x_peaks is None or w_peaks is None:
        return y, _nothing(x) if _view(x) else xh, _nothing(x), wh, _nothing(x)
    return y, xh, x_peaks, wh, w_peaks


@conv.register_fake
def _(
    x: Tensor, w: Tensor, signs: Tensor | None, bias: Tensor | None, outputs: int, window: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    sizes = Window.unpack(window)
    y = _output_like(x, outputs, sizes)
    rows, matrix = (x.shape[0] * x.shape[2], x.shape[1]), (outputs, sizes.taps, x.shape[1] // sizes.groups)
    if x.dtype != torch.float32:
        xh = _nothing(x) if _view(x) else x.new_empty(1, *rows)
        return y, xh, _nothing(x), w.new_empty(1, *matrix), _nothing(x)
    xh, wh = (x.new_empty(parts(), *shape, dtype=torch.float16) for shape in (rows, matrix))
    return y, xh, peaks(x), wh, peaks(w)


@torch.library.custom_op("lamina::circulant_conv_grads", mutates_args=())
def conv_grads(
    dy: Tensor, x: Tensor, w: Tensor, signs: Tensor | None,
    xh: Tensor | None, x_peaks: Tensor | None, wh: Tensor | None, w_peaks: Tensor | None,
    window: list[int], data: bool, weight: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of `conv` by ``x`` and by ``w``, those that are wanted, from what it laid down if that is given."""
    return _conv_grads(dy, x, w, signs, xh, x_peaks, wh, w_peaks, tuple(window), data, weight)


@taped
def _conv_grads(
    dy: Tensor, x: Tensor, w: Tensor, signs: Tensor | None,
    xh: Tensor | None, x_peaks: Tensor | None, wh: Tensor | None, w_peaks: Tensor | None,
    window: tuple[int, ...], data: bool, weight: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    sizes, (_, _, _, k) = Window.unpack(window), w.shape
    dyh, dy_peaks = _rows(dy)
    dx, dw = _gradients_like(x, w, data, weight)
    if data:
        made = (wh, w_peaks if _given(w_peaks) else None)
        made = made if _given(wh) else _weights(w, signs, sizes, x.shape[1], dy.shape[1])
        product(dyh, dy_peaks, *made, None, dx, sizes, back=True)  # type: ignore[arg-type]
    if weight:
        given = (xh, x_peaks if _given(x_peaks) else None) if _given(xh) else _rows(x)
        dense = gradient(dyh, dy_peaks, *given, sizes)  # type: ignore[arg-type]
        dw = run_diagonal_sums(dense.mT, signs, k, sizes.groups).to(w.dtype)
    return dx, dw


def _gradients_like(x: Tensor, w: Tensor, data: bool, weight: bool) -> tuple[Tensor, Tensor]:
    batch, channels, length = x.shape
    dx = empty_rows(x, (batch, channels, length), is_channels_last(x), x.dtype) if data else _nothing(x)
    return dx, w.new_empty(w.shape) if weight else _nothing(w)


@conv_grads.register_fake
def _(
    dy: Tensor, x: Tensor, w: Tensor, signs: Tensor | None,
    xh: Tensor | None, x_peaks: Tensor | None, wh: Tensor | None, w_peaks: Tensor | None,
    window: list[int], data: bool, weight: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _gradients_like(x, w, data, weight)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, w, signs, _, _, ctx.window = inputs
    ctx.save_for_backward(x, w, signs, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, g: Tensor | None, *_: Any) -> tuple[Any, ...]:
    if g is None:
        return (None,) * 6
    (x, w, signs, *made), (data, weight, _, bias, *_) = ctx.saved_tensors, ctx.needs_input_grad
    dx = dw = None
    if data or weight:
        dx, dw = in_backward(conv_grads, _conv_grads, g, x, w, signs, *made, tuple(ctx.window), data, weight)
    return dx if data else None, dw if weight else None, None, g.sum((0, 2)) if bias else None, None, None


def _keep_grads(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.window, ctx.data, ctx.weight = inputs
    ctx.save_for_backward(*tensors[:4])
    ctx.set_materialize_grads(False)


def _grads_gradient(ctx: Any, hx: Tensor | None, hw: Tensor | None) -> tuple[Any, ...]:
    (dy, x, w, signs), (for_dy, for_x, for_w, *_) = ctx.saved_tensors, ctx.needs_input_grad
    hx, hw = (hx if ctx.data else None), (hw if ctx.weight else None)
    for_x, for_w = for_x and hw is not None, for_w and hx is not None
    ddy = dx = dw = None
    if for_dy:
        pairs = [(hx, w)] * (hx is not None) + [(x, hw)] * (hw is not None)
        ddy = sum(conv(a, b, signs, None, dy.shape[1], ctx.window)[0] for a, b in pairs) if pairs else None
    if for_x or for_w:
        dx, dw = conv_grads(
            dy, x if hx is None else hx, w if hw is None else hw, signs, *(None,) * 4, ctx.window, for_x, for_w
        )
    return ddy, dx if for_x else None, dw if for_w else None, *(None,) * 8


conv.register_autograd(_gradient, setup_context=_keep)
directly = direct(conv, _conv, _keep, _gradient)
conv_grads.register_autograd(_grads_gradient, setup_context=_keep_grads)


def _flops(outputs: int, inputs: int, window: list[int]) -> int:
    """A dense convolution's, however many products of halves make one."""
    sizes = Window.unpack(window)
    return conv_cost(sizes.rows_out, outputs, inputs // sizes.groups, sizes.taps, parts=1).flops


@register_flop_formula(torch.ops.lamina.circulant_conv)
def _(x: Any, w: Any, signs: Any, bias: Any, outputs: int, window: list[int], *_: Any, **__: Any) -> int:
    return _flops(outputs, x[1], window)


@register_flop_formula(torch.ops.lamina.circulant_conv_grads)
def _(dy: Any, x: Any, w: Any, *rest: Any, **__: Any) -> int:
    *_, window, data, weight = rest
    return int(data + weight) * _flops(dy[1], x[1], window)

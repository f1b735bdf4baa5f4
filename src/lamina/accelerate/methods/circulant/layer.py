"""A layer as two operators, forward and back: each more would take the host longer than small kernels take a GPU.

Where nobody sees operators a layer does without them, and what it launches is on tape. Gradients of gradients are made
by the operators of `ops` and `transform`.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.methods.circulant import scaled
from lamina.accelerate.methods.circulant.basis import parts
from lamina.accelerate.methods.circulant.ops import (
    added,
    input_like,
    mix_flops,
    mix_grads,
    output_like,
    run_grads,
    run_mix,
)
from lamina.accelerate.methods.circulant.spectral.ops import (
    dft,
    dft_pair,
    idft_pair,
    run_dft,
    run_idft,
    spectrum_like,
    transform_flops,
)
from lamina.accelerate.methods.circulant.window import Window
from lamina.accelerate.runtime.eager_op import direct, in_backward
from lamina.accelerate.runtime.launch_cache import taped

LINEAR = 3
"""Axes of a linear layer's weight; a convolution's has more."""


@torch.library.custom_op("lamina::circulant_product", mutates_args=())
def product(
    x: Tensor, weight: Tensor, signs: Tensor | None, bias: Tensor | None, outputs: int, window: list[int],
    dtype: torch.dtype, halved: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The layer in ``dtype``; spectra of ``x`` and ``weight``; and, if ``halved``, their scales.

    A linear layer takes ``x (..., C)`` to ``(..., outputs)`` by ``weight (P, q, k)``; a convolution ``x (N, C, H, W)``
    to ``(N, outputs, H', W')`` by ``weight (P, *kernel, q, k)``; both of any strides. Spectra are ``[F, ...]`` in
    ``dtype``, or ``[parts, F, ...]`` of float16 under scales, each of which is given as what undoes it, ``[1]``.
    """
    return _product(x, weight, signs, bias, outputs, tuple(window), dtype, halved)


@taped
def _product(
    x: Tensor, weight: Tensor, signs: Tensor | None, bias: Tensor | None, outputs: int, window: tuple[int, ...],
    dtype: torch.dtype, halved: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    sizes, k = Window.unpack(window), weight.shape[-1]
    made, xs, ws, x_down, w_down = _product_like(x, weight, outputs, sizes, dtype, halved)
    x, w, y = _rows(x, weight.dim()), _columns(weight), _rows(made, weight.dim())
    room = 1.0
    if halved:
        room = scaled.room(sizes.taps * ws.shape[-1], parts(xs))
        scaled.spectra(x, w, signs, xs, ws, x_down, w_down, k, sizes.groups)
    else:
        run_dft(x, w, signs, xs, ws, k, sizes.groups, False, pair=True)
    ys = run_mix(xs, ws, output_like(xs, ws, sizes), sizes, back=False, down=1 / room)
    bias = None if bias is None else bias.contiguous()
    run_idft(ys, ys, None, bias, y, y, k, sizes.groups, False, False, (x_down, w_down, w_down), halved * room)
    return made, xs, ws, x_down, w_down


@torch.library.custom_op("lamina::circulant_gradients", mutates_args=())
def gradients(
    dy: Tensor, xs: Tensor, ws: Tensor, x_down: Tensor, w_down: Tensor, signs: Tensor | None, window: list[int],
    x_shape: list[int], w_shape: list[int], channels_last: bool, x_dtype: torch.dtype, w_dtype: torch.dtype,
    for_x: bool, for_w: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of `product` by ``x`` and by ``weight``, from what it kept; empty where not asked for."""
    shapes, types = (tuple(x_shape), tuple(w_shape)), (x_dtype, w_dtype)
    return _gradients(dy, xs, ws, x_down, w_down, signs, tuple(window), *shapes, channels_last, *types, for_x, for_w)


@taped
def _gradients(
    dy: Tensor, xs: Tensor, ws: Tensor, x_down: Tensor, w_down: Tensor, signs: Tensor | None, window: tuple[int, ...],
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], channels_last: bool, x_dtype: torch.dtype, w_dtype: torch.dtype,
    for_x: bool, for_w: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    sizes, k, halved = Window.unpack(window), w_shape[-1], xs.dim() > 4
    made = _gradients_like(dy, x_shape, w_shape, channels_last, x_dtype, w_dtype, for_x, for_w)
    dy, dx = _rows(dy, len(w_shape)), _rows(made[0], len(w_shape)) if for_x else made[0]
    dw = _columns(made[1]) if for_w else made[1]
    dys = spectrum_like(dy, k, sizes.groups, xs.dtype, *xs.shape[:-4])
    y_down, room = dy.new_empty(int(halved), dtype=torch.float32), 1.0
    if halved:
        room = scaled.room(sizes.taps * dys.shape[-1] // sizes.groups, parts(dys))
        scaled.spectra(dy, None, None, dys, dys, y_down, y_down, k, sizes.groups)
    else:
        run_dft(dy, dy, None, dys, dys, k, sizes.groups, False, pair=False)
    dxs = input_like(dys, ws, sizes) if for_x else None
    if dxs is not None and not for_w:
        downs = y_down, w_down, w_down
        run_mix(dys, ws, dxs, sizes, back=True, down=1 / room)
        run_idft(dxs, dxs, signs, None, dx, dx, k, sizes.groups, False, False, downs, halved * room)
        return made
    dws = run_grads(dys, xs, ws, dxs, sizes, 1 / room if halved else None)
    if dxs is None or not halved:  # launch 6 adds shares where it transforms all back from float32
        dws = added(dws, torch.float32 if halved else dys.dtype)
    if dxs is None:
        downs = y_down, x_down, x_down
        run_idft(dws, dws, None, None, dw, dw, k, 1, True, False, downs, 1.0 * halved)
    else:
        downs = y_down, w_down, x_down
        run_idft(dxs, dws, signs, None, dx, dw, k, sizes.groups, False, True, downs, halved * room, 1.0 * halved)
    return made


def _rows(x: Tensor, axes: int) -> Tensor:
    """``(N, C, L)`` of what a layer with so many ``axes`` of its weight takes or gives."""
    return x.reshape(-1, x.shape[-1])[..., None] if axes == LINEAR else x.flatten(2)


def _columns(weight: Tensor) -> Tensor:
    """``(P, q*k, taps)`` of ``(P, *kernel, q, k)``."""
    return weight.reshape(weight.shape[0], -1, weight.shape[-2] * weight.shape[-1]).mT


def _like(like: Tensor, shape: Sequence[int], channels_last: bool, dtype: torch.dtype) -> Tensor:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(tuple(shape), dtype=dtype, device=like.device, memory_format=layout)


def _product_like(
    x: Tensor, weight: Tensor, outputs: int, window: Window, dtype: torch.dtype, halved: bool
) -> tuple[Tensor, ...]:
    kind, k = (torch.float16, scaled.halves()) if halved else (dtype,), weight.shape[-1]
    if weight.dim() == LINEAR:
        made = _like(x, (*x.shape[:-1], outputs), False, dtype)
    else:
        made = _like(x, (len(x), outputs, window.out_height, window.out_width), _is_last(x, weight), dtype)
    xs = spectrum_like(_rows(x, weight.dim()), k, window.groups, *kind)
    downs = [x.new_empty(int(halved), dtype=torch.float32) for _ in range(2)]
    return made, xs, spectrum_like(_columns(weight), k, 1, *kind), *downs


def _is_last(x: Tensor, weight: Tensor) -> bool:
    """Whether a pixel's channels lie together."""
    return weight.dim() > LINEAR and x.stride(1) == 1 and x.shape[2] * x.shape[3] > 1


def _gradients_like(
    dy: Tensor, x_shape: Sequence[int], w_shape: Sequence[int], channels_last: bool, x_dtype: torch.dtype,
    w_dtype: torch.dtype, for_x: bool, for_w: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    dx = _like(dy, x_shape if for_x else (0,), channels_last and for_x, x_dtype)
    return dx, _like(dy, w_shape if for_w else (0,), False, w_dtype)


@product.register_fake
def _(
    x: Tensor, weight: Tensor, signs: Tensor | None, bias: Tensor | None, outputs: int, window: list[int],
    dtype: torch.dtype, halved: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    return _product_like(x, weight, outputs, Window.unpack(window), dtype, halved)


@gradients.register_fake
def _(
    dy: Tensor, xs: Tensor, ws: Tensor, x_down: Tensor, w_down: Tensor, signs: Tensor | None, window: list[int],
    *like: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _gradients_like(dy, *like)


def _keep_product(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, signs, bias, _, window, _, ctx.halved = inputs
    ctx.window, ctx.bias_dtype = tuple(window), None if bias is None else bias.dtype
    ctx.like = tuple(x.shape), tuple(weight.shape), _is_last(x, weight), x.dtype, weight.dtype
    _, *kept = output
    # Spectra have gradients of their own, of which gradients of gradients are made; those under scales have not.
    ctx.mark_non_differentiable(*kept if ctx.halved else kept[2:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(signs, *kept, *((x, weight) if ctx.halved else ()))


def _product_gradient(ctx: Any, gy: Tensor | None, gxs: Tensor | None, gws: Tensor | None, *_: None) -> tuple[Any, ...]:
    for_x, for_w, _, for_bias, *_ = ctx.needs_input_grad
    bias = dx = dw = None
    if for_bias and gy is not None:
        bias = _rows(gy, len(ctx.like[1])).sum((0, 2), dtype=ctx.bias_dtype)
    if torch.is_grad_enabled() or gxs is not None or gws is not None:
        dx, dw = _differentiable(ctx, gy, gxs, gws)
    elif gy is not None and (for_x or for_w):
        signs, *kept = ctx.saved_tensors
        dx, dw = in_backward(gradients, _gradients, gy, *kept[:4], signs, ctx.window, *ctx.like, for_x, for_w)
    return dx if for_x else None, dw if for_w else None, None, bias, *(None,) * 4


def _differentiable(ctx: Any, gy: Tensor | None, gxs: Tensor | None, gws: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gradients by ``x`` and ``weight``, by operators that have gradients themselves."""
    (signs, xs, ws, _, _, *operands), groups = ctx.saved_tensors, Window.unpack(ctx.window).groups
    x_shape, w_shape, channels_last, x_dtype, w_dtype = ctx.like
    k, axes = w_shape[-1], len(w_shape)
    if ctx.halved:
        x, weight = operands
        xs, ws = dft_pair(_rows(x, axes), _columns(weight), signs, k, groups, x_dtype)
    gxs, gws = torch.zeros_like(xs) if gxs is None else gxs, torch.zeros_like(ws) if gws is None else gws
    if gy is not None:
        more = mix_grads(dft(_rows(gy, axes), None, k, groups, False, xs.dtype), xs, ws, list(ctx.window))
        gxs, gws = gxs + more[0], gws + more[1]
    sizes = (x_shape[-1], 1) if axes == LINEAR else (x_shape[1], x_shape[2] * x_shape[3])
    dx, dw = idft_pair(gxs, gws, signs, k, groups, *sizes, channels_last, x_dtype, prod(w_shape[1:-2]), w_dtype)
    return dx.reshape(x_shape), dw.mT.reshape(w_shape)


product.register_autograd(_product_gradient, setup_context=_keep_product)
directly = direct(product, _product, _keep_product, _product_gradient)


@register_flop_formula(torch.ops.lamina.circulant_product)
def _(
    x: Any, weight: Any, signs: Any, bias: Any, outputs: int, window: list[int], *_: Any, out_shape: Any, **__: Any
) -> int:
    _, xs, ws, *_ = out_shape
    sizes = Window.unpack(window)
    rows: list[tuple[int, int]] = [(xs[-3], xs[-1]), (ws[-3], ws[-1]), (sizes.rows_out, weight[0])]
    products = mix_flops(window, weight[0] // sizes.groups, ws[-1], ws[-4])
    return sum(transform_flops(1, *row, weight[-1]) for row in rows) + products


@register_flop_formula(torch.ops.lamina.circulant_gradients)
def _(
    dy: Any, xs: Any, ws: Any, x_down: Any, w_down: Any, signs: Any, window: list[int], x_shape: Any, w_shape: Any,
    channels_last: bool, x_dtype: Any, w_dtype: Any, for_x: bool, for_w: bool, **_: Any,
) -> int:  # fmt: skip
    sizes = Window.unpack(window)
    rows: list[tuple[int, int]] = [(sizes.rows_out, w_shape[0])]
    rows += [(xs[-3], xs[-1])] * for_x + [(ws[-3], ws[-1])] * for_w
    products = (for_x + for_w) * mix_flops(window, w_shape[0] // sizes.groups, ws[-1], ws[-4])
    return sum(transform_flops(1, *row, w_shape[-1]) for row in rows) + products

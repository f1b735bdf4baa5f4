"""A layer as two operators, forward and back: each more would take the host longer than small kernels take a GPU.

Gradients of gradients are made by the operators of `ops` and `transform`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.circulant import scaled
from lamina.accelerate.circulant.basis import parts
from lamina.accelerate.circulant.ops import (
    added,
    empty_rows,
    input_like,
    is_channels_last,
    mix_flops,
    mix_grads,
    output_like,
    run_grads,
    run_mix,
)
from lamina.accelerate.circulant.transform.ops import (
    dft,
    dft_pair,
    idft_pair,
    run_dft,
    run_idft,
    spectrum_like,
    transform_flops,
)
from lamina.accelerate.circulant.window import Window


@torch.library.custom_op("lamina::circulant_product", mutates_args=())
def product(
    x: Tensor, w: Tensor, signs: Tensor | None, bias: Tensor | None, block_size: int, out_channels: int,
    window: list[int], dtype: torch.dtype, halved: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The layer: ``(N, out_channels, L')`` in ``dtype``; spectra of ``x`` and ``w``; and, if ``halved``, their scales.

    ``x (N, C, L)`` is of any strides, ``w (P, q*k, taps)``; spectra are ``[F, ...]`` in ``dtype``, or ``[parts, F,
    ...]`` of float16 under scales, each of which is given as what undoes it, ``[1]``.
    """
    sizes = Window.unpack(window)
    y, xs, ws, x_down, w_down = _product_like(x, w, block_size, out_channels, sizes, dtype, halved)
    room = 1.0
    if halved:
        room = scaled.room(sizes.taps * ws.shape[-1], parts(xs))
        scaled.spectra(x, w, signs, xs, ws, x_down, w_down, block_size, sizes.groups)
    else:
        run_dft(x, w, signs, xs, ws, block_size, sizes.groups, False, pair=True)
    ys = run_mix(xs, ws, output_like(xs, ws, sizes), sizes, back=False, down=1 / room)
    bias = None if bias is None else bias.contiguous()
    downs = x_down, w_down, w_down
    run_idft(ys, ys, None, bias, y, y, block_size, sizes.groups, False, False, downs, halved * room)
    return y, xs, ws, x_down, w_down


@torch.library.custom_op("lamina::circulant_gradients", mutates_args=())
def gradients(
    dy: Tensor, xs: Tensor, ws: Tensor, x_down: Tensor, w_down: Tensor, signs: Tensor | None, block_size: int,
    window: list[int], channels: int, channels_last: bool, x_dtype: torch.dtype, w_dtype: torch.dtype,
    for_x: bool, for_w: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of `product` by ``x`` and by ``w``, from what it kept; empty where not asked for."""
    sizes, halved = Window.unpack(window), xs.dim() > 4
    dx, dw = _gradients_like(dy, ws, block_size, sizes, channels, channels_last, x_dtype, w_dtype, for_x, for_w)
    dys = spectrum_like(dy, block_size, sizes.groups, xs.dtype, *xs.shape[:-4])
    y_down, room = dy.new_empty(int(halved), dtype=torch.float32), 1.0
    if halved:
        room = scaled.room(sizes.taps * dys.shape[-1] // sizes.groups, parts(dys))
        scaled.spectra(dy, None, None, dys, dys, y_down, y_down, block_size, sizes.groups)
    else:
        run_dft(dy, dy, None, dys, dys, block_size, sizes.groups, False, pair=False)
    dxs = input_like(dys, ws, sizes) if for_x else None
    if dxs is not None and not for_w:
        downs = y_down, w_down, w_down
        run_mix(dys, ws, dxs, sizes, back=True, down=1 / room)
        run_idft(dxs, dxs, signs, None, dx, dx, block_size, sizes.groups, False, False, downs, halved * room)
        return dx, dw
    dws = run_grads(dys, xs, ws, dxs, sizes, 1 / room if halved else None)
    if dxs is None or not halved:  # launch 6 adds shares where it transforms all back from float32
        dws = added(dws, torch.float32 if halved else dys.dtype)
    if dxs is None:
        downs = y_down, x_down, x_down
        run_idft(dws, dws, None, None, dw, dw, block_size, 1, True, False, downs, 1.0 * halved)
    else:
        downs = y_down, w_down, x_down
        run_idft(
            dxs, dws, signs, None, dx, dw, block_size, sizes.groups, False, True, downs, halved * room, 1.0 * halved
        )
    return dx, dw


def _product_like(
    x: Tensor, w: Tensor, block_size: int, out_channels: int, window: Window, dtype: torch.dtype, halved: bool
) -> tuple[Tensor, ...]:
    kind = (torch.float16, scaled.halves()) if halved else (dtype,)
    xs, ws = spectrum_like(x, block_size, window.groups, *kind), spectrum_like(w, block_size, 1, *kind)
    shape = window.batch, out_channels, window.out_height * window.out_width
    downs = [x.new_empty(int(halved), dtype=torch.float32) for _ in range(2)]
    return empty_rows(x, shape, is_channels_last(x), dtype), xs, ws, *downs


def _gradients_like(
    dy: Tensor, ws: Tensor, block_size: int, window: Window, channels: int, channels_last: bool,
    x_dtype: torch.dtype, w_dtype: torch.dtype, for_x: bool, for_w: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    x_shape = window.batch, channels, window.height * window.width
    w_shape = ws.shape[-3] // window.taps, ws.shape[-1] * block_size, window.taps
    dx = empty_rows(dy, x_shape, channels_last, x_dtype) if for_x else dy.new_empty(0, dtype=x_dtype)
    return dx, empty_rows(dy, w_shape, True, w_dtype) if for_w else dy.new_empty(0, dtype=w_dtype)


@product.register_fake
def _(
    x: Tensor, w: Tensor, signs: Tensor | None, bias: Tensor | None, block_size: int, out_channels: int,
    window: list[int], dtype: torch.dtype, halved: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    return _product_like(x, w, block_size, out_channels, Window.unpack(window), dtype, halved)


@gradients.register_fake
def _(
    dy: Tensor, xs: Tensor, ws: Tensor, x_down: Tensor, w_down: Tensor, signs: Tensor | None, block_size: int,
    window: list[int], *like: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _gradients_like(dy, ws, block_size, Window.unpack(window), *like)


def _keep_product(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, w, signs, bias, ctx.block_size, _, ctx.window, _, ctx.halved = inputs
    ctx.rows = x.shape[1:], is_channels_last(x), x.dtype
    ctx.taps, ctx.w_dtype, ctx.bias_dtype = w.shape[2], w.dtype, None if bias is None else bias.dtype
    _, *kept = output
    # Spectra have gradients of their own, of which gradients of gradients are made; those under scales have not.
    ctx.mark_non_differentiable(*kept if ctx.halved else kept[2:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(signs, *kept, *((x, w) if ctx.halved else ()))


def _product_gradient(ctx: Any, gy: Tensor | None, gxs: Tensor | None, gws: Tensor | None, *_: None) -> tuple[Any, ...]:
    signs, *kept = ctx.saved_tensors
    for_x, for_w, _, for_bias, *_ = ctx.needs_input_grad
    (channels, length), *rows = ctx.rows
    bias = gy.sum((0, 2), dtype=ctx.bias_dtype) if for_bias and gy is not None else None
    dx = dw = None
    if torch.is_grad_enabled() or gxs is not None or gws is not None:  # by operators that have gradients themselves
        groups = Window.unpack(ctx.window).groups
        xs, ws, _, _, *operands = kept
        if ctx.halved:
            xs, ws = dft_pair(*operands, signs, ctx.block_size, groups, rows[-1])
        gxs, gws = torch.zeros_like(xs) if gxs is None else gxs, torch.zeros_like(ws) if gws is None else gws
        if gy is not None:
            more = mix_grads(dft(gy, None, ctx.block_size, groups, False, xs.dtype), xs, ws, ctx.window)
            gxs, gws = gxs + more[0], gws + more[1]
        dx, dw = idft_pair(gxs, gws, signs, ctx.block_size, groups, channels, length, *rows, ctx.taps, ctx.w_dtype)
    elif gy is not None and (for_x or for_w):
        dx, dw = gradients(gy, *kept[:4], signs, ctx.block_size, ctx.window, channels, *rows, ctx.w_dtype, for_x, for_w)
    return dx if for_x else None, dw if for_w else None, None, bias, *(None,) * 5


product.register_autograd(_product_gradient, setup_context=_keep_product)


@register_flop_formula(torch.ops.lamina.circulant_product)
def _(
    x: Any, w: Any, signs: Any, bias: Any, block_size: int, out_channels: int, window: list[int], *_: Any,
    out_shape: Any, **__: Any,
) -> int:  # fmt: skip
    y, xs, ws, *_ = out_shape
    sizes = Window.unpack(window)
    rows = ((xs[-3], xs[-1]), (ws[-3], ws[-1]), (y[0] * y[2], w[0]))
    products = mix_flops(window, w[0] // sizes.groups, ws[-1], ws[-4])
    return sum(transform_flops(1, *row, block_size) for row in rows) + products


@register_flop_formula(torch.ops.lamina.circulant_gradients)
def _(
    dy: Any, xs: Any, ws: Any, x_down: Any, w_down: Any, signs: Any, block_size: int, window: list[int],
    channels: int, channels_last: bool, x_dtype: Any, w_dtype: Any, for_x: bool, for_w: bool, **_: Any,
) -> int:  # fmt: skip
    sizes = Window.unpack(window)
    outputs = ws[-3] // sizes.taps
    rows = [(dy[0] * dy[2], outputs), *[(xs[-3], xs[-1])] * for_x, *[(ws[-3], ws[-1])] * for_w]
    products = (for_x + for_w) * mix_flops(window, outputs // sizes.groups, ws[-1], ws[-4])
    return sum(transform_flops(1, *row, block_size) for row in rows) + products

"""The layer in float16 under scales: two operators, and which layers.

One half has the digits of TF32 at twice its rate; two have those of float32, and three products of them cost half of
what three of TF32 do. Scales come from the largest numbers of what is transformed, found on the device. A gradient of a
gradient is made by the operators of `ops` and `transform`, from what came in.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.circulant.basis import parts
from lamina.accelerate.circulant.ops import (
    SHORT,
    added,
    empty_rows,
    input_like,
    is_channels_last,
    mix_flops,
    mix_grads,
    output_like,
    run_grads,
    run_mix,
    tf32,
)
from lamina.accelerate.circulant.tiles import scales_pay
from lamina.accelerate.circulant.transform.ops import (
    TOP,
    Scales,
    dft,
    dft_pair,
    idft_pair,
    run_dft,
    run_idft,
    spectrum_like,
    transform_flops,
)
from lamina.accelerate.circulant.window import Window
from lamina.accelerate.halves.ops import pair_peaks

GUESSED = 2**23
"""Numbers of rows from which their scale is guessed: reading these takes longer than the two launches that may mend it,
which are mostly idle."""

EVERY = 16
"""Of so many pieces of rows one is looked at to guess their scale."""


def halved(dtype: torch.dtype, x: Tensor, w: Tensor, block_size: int, out_channels: int, window: Window) -> bool:
    """Whether these are multiplied as float16 under scales: in float32's accuracy, where no sum is a short one."""
    if not x.dtype == w.dtype == dtype == torch.float32:
        return False
    pays = scales_pay(x.numel(), w.numel(), window.rows_out * out_channels)
    blocks = min(w.shape[0] // window.groups, w.shape[1] // block_size)
    return pays and (tf32() or min(block_size, 2 * window.taps * blocks, window.rows_out) > SHORT)


def halves() -> int:
    """Parts that each number is kept in."""
    return 1 if tf32() else 2


def _room(summed: int, parts: int) -> float:
    """The power of two that sums of so many products are divided by: of one part, to stay below ``2**(TOP + 1)``.

    Those of two parts are kept in float32.
    """
    return 2.0 ** (TOP + 1 + (summed - 1).bit_length()) if parts == 1 else 1.0


@torch.library.custom_op("lamina::circulant_product", mutates_args=())
def product(
    x: Tensor, w: Tensor, signs: Tensor | None, bias: Tensor | None, block_size: int, out_channels: int,
    window: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The layer in float16 under scales, forward: ``(N, out_channels, L')``; spectra of ``x`` and ``w``; their scales.

    ``x (N, C, L)`` and ``w (P, q*k, taps)`` are float32, spectra ``[parts, F, ...]``. Scales are given as what undoes
    them, each ``[1]``.
    """
    sizes = Window.unpack(window)
    y, xs, ws, x_down, w_down = _product_like(x, w, block_size, out_channels, sizes)
    _spectra(x, w, signs, xs, ws, x_down, w_down, block_size, sizes.groups)
    ys, room = output_like(xs, ws, sizes), _room(sizes.taps * ws.shape[-1], parts(xs))
    run_mix(xs, ws, ys, sizes, back=False, down=1 / room)
    bias = None if bias is None else bias.contiguous()
    run_idft(ys, ys, None, bias, y, y, block_size, sizes.groups, False, False, (x_down, w_down, w_down), room)
    return y, xs, ws, x_down, w_down


@torch.library.custom_op("lamina::circulant_gradients", mutates_args=())
def gradients(
    dy: Tensor, xs: Tensor, ws: Tensor, x_down: Tensor, w_down: Tensor, signs: Tensor | None, block_size: int,
    window: list[int], channels: int, channels_last: bool, for_x: bool, for_w: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of `product` by ``x`` and by ``w``, from what it kept; empty where not asked for."""
    sizes = Window.unpack(window)
    dx, dw = _gradients_like(dy, ws, block_size, sizes, channels, channels_last, for_x, for_w)
    dys, y_down = spectrum_like(dy, block_size, sizes.groups, torch.float16, ws.shape[0]), dy.new_empty(1)
    _spectra(dy, None, None, dys, dys, y_down, y_down, block_size, sizes.groups)
    dxs = input_like(dys, ws, sizes) if for_x else None
    room = _room(sizes.taps * dys.shape[-1] // sizes.groups, parts(dys))
    if dxs is not None and not for_w:
        run_mix(dys, ws, dxs, sizes, back=True, down=1 / room)
        run_idft(dxs, dxs, signs, None, dx, dx, block_size, sizes.groups, False, False, (y_down, w_down, w_down), room)
        return dx, dw
    dws = run_grads(dys, xs, ws, dxs, sizes, 1 / room)
    if dxs is None:
        dws = added(dws, torch.float32)
        run_idft(dws, dws, None, None, dw, dw, block_size, 1, True, False, (y_down, x_down, x_down), 1.0)
    else:
        downs = (y_down, w_down, x_down)
        run_idft(dxs, dws, signs, None, dx, dw, block_size, sizes.groups, False, True, downs, room, 1.0)
    return dx, dw


def _spectra(
    x: Tensor, w: Tensor | None, signs: Tensor | None, xs: Tensor, ws: Tensor, x_down: Tensor, w_down: Tensor,
    block_size: int, groups: int,
) -> None:  # fmt: skip
    """Fill ``xs`` and, of weights if there are any, ``ws``, and what undoes their scales.

    To find the largest number of rows reads as much as their transform does. Of many rows some are looked at to guess
    the scale, and should one of the others be beyond it, all are transformed again.
    """
    both = (x,) if w is None else (x, w)
    misled = x.new_empty(1, dtype=torch.int32) if x.numel() >= GUESSED else None
    peaks = pair_peaks(*both, misled=misled, every=1 if misled is None else EVERY)
    scales = Scales(*peaks, x_down, w_down, misled)
    run_dft(x, both[-1], signs, xs, ws, block_size, groups, False, w is not None, scales)
    if misled is not None:
        scales = Scales(*pair_peaks(x, misled=misled), x_down, x_down, misled, again=True)
        run_dft(x, x, signs, xs, xs, block_size, groups, False, False, scales)


def _product_like(x: Tensor, w: Tensor, block_size: int, out_channels: int, window: Window) -> tuple[Tensor, ...]:
    half, pixels = (torch.float16, halves()), window.out_height * window.out_width
    xs, ws = spectrum_like(x, block_size, window.groups, *half), spectrum_like(w, block_size, 1, *half)
    shape = window.batch, out_channels, pixels
    return empty_rows(x, shape, is_channels_last(x)), xs, ws, x.new_empty(1), x.new_empty(1)


def _gradients_like(
    dy: Tensor, ws: Tensor, block_size: int, window: Window, channels: int, channels_last: bool,
    for_x: bool, for_w: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    x_shape = window.batch, channels, window.height * window.width
    w_shape = ws.shape[-3] // window.taps, ws.shape[-1] * block_size, window.taps
    dx = empty_rows(dy, x_shape, channels_last) if for_x else dy.new_empty(0)
    return dx, empty_rows(dy, w_shape, True) if for_w else dy.new_empty(0)


@product.register_fake
def _(
    x: Tensor, w: Tensor, signs: Tensor | None, bias: Tensor | None, block_size: int, out_channels: int,
    window: list[int],
) -> tuple[Tensor, ...]:  # fmt: skip
    return _product_like(x, w, block_size, out_channels, Window.unpack(window))


@gradients.register_fake
def _(
    dy: Tensor, xs: Tensor, ws: Tensor, x_down: Tensor, w_down: Tensor, signs: Tensor | None, block_size: int,
    window: list[int], channels: int, channels_last: bool, for_x: bool, for_w: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _gradients_like(dy, ws, block_size, Window.unpack(window), channels, channels_last, for_x, for_w)


def _keep_product(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, w, signs, bias, ctx.block_size, _, ctx.window = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    _, *kept = output
    ctx.mark_non_differentiable(*kept)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, w, signs, *kept)


def _product_gradient(ctx: Any, gy: Tensor, *_: None) -> tuple[Any, ...]:
    x, w, signs, *kept = ctx.saved_tensors
    for_x, for_w, _, for_bias, *_ = ctx.needs_input_grad
    bias = gy.sum((0, 2), dtype=ctx.bias_dtype) if for_bias else None
    if torch.is_grad_enabled():  # to be differentiated again: by the operators that can be
        groups, rows, taps = Window.unpack(ctx.window).groups, (*x.shape[1:], is_channels_last(x), x.dtype), w.shape[2]
        xs, ws = dft_pair(x, w, signs, ctx.block_size, groups, x.dtype)
        dys = dft(gy, None, ctx.block_size, groups, False, x.dtype)
        dx, dw = idft_pair(*mix_grads(dys, xs, ws, ctx.window), signs, ctx.block_size, groups, *rows, taps, w.dtype)
    else:
        sizes = ctx.block_size, ctx.window, x.shape[1], is_channels_last(x)
        dx, dw = gradients(gy, *kept, signs, *sizes, for_x, for_w)
    return dx if for_x else None, dw if for_w else None, None, bias, None, None, None


product.register_autograd(_product_gradient, setup_context=_keep_product)
@register_flop_formula(torch.ops.lamina.circulant_product)
def _(
    x: Any, w: Any, signs: Any, bias: Any, block_size: int, out_channels: int, window: list[int],
    *, out_shape: Any, **_: Any,
) -> int:  # fmt: skip
    y, xs, ws, *_ = out_shape
    sizes = Window.unpack(window)
    outputs = w[0] // sizes.taps
    p = outputs // sizes.groups
    rows = ((xs[-3], xs[-1]), (ws[-3], ws[-1]), (y[0] * y[2], outputs))
    return sum(transform_flops(1, *row, block_size) for row in rows) + mix_flops(window, p, ws[-1], ws[-4])


@register_flop_formula(torch.ops.lamina.circulant_gradients)
def _(
    dy: Any, xs: Any, ws: Any, x_down: Any, w_down: Any, signs: Any, block_size: int, window: list[int],
    channels: int, channels_last: bool, for_x: bool, for_w: bool, **_: Any,
) -> int:  # fmt: skip
    sizes = Window.unpack(window)
    outputs = ws[-3] // sizes.taps
    rows = [(dy[0] * dy[2], outputs), *[(xs[-3], xs[-1])] * for_x, *[(ws[-3], ws[-1])] * for_w]
    products = (for_x + for_w) * mix_flops(window, outputs // sizes.groups, ws[-1], ws[-4])
    return sum(transform_flops(1, *row, block_size) for row in rows) + products

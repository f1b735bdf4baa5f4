"""A whole layer as two operators, forward and backward: dispatching more of them takes longer than small kernels run.

In eager mode the layer bypasses the dispatcher, and its launches are replayed from the launch cache. Double backward
uses the differentiable operators of `ops` and `spectral.ops`.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.common.channel_sums.ops import bias_gradient, relu_gradients
from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.methods.circulant import scaled_fp16
from lamina.accelerate.methods.circulant.basis import num_terms
from lamina.accelerate.methods.circulant.ops import (
    input_spectrum_like,
    output_spectrum_like,
    reduce_split_k,
    run_spectral_matmul,
    run_spectral_matmul_backward,
    spectral_matmul_backward,
    spectral_matmul_flops,
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
from lamina.accelerate.runtime.eager_op import call_in_backward, without_dispatch
from lamina.accelerate.runtime.launch_cache import cached_launches
from lamina.accelerate.runtime.replay import register_kernel

LINEAR = 3
"""Dimensions of a linear layer's weight; a convolution's has more."""


@torch.library.custom_op("lamina::circulant_layer", mutates_args=())
def layer(
    x: Tensor, weight: Tensor, signs: Tensor | None, bias: Tensor | None, outputs: int, window: list[int],
    dtype: torch.dtype, scaled: bool, relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The output in ``dtype``, the spectra of ``x`` and ``weight``, and, if ``scaled``, their inverse scales.

    A linear layer maps ``x (..., C)`` to ``(..., outputs)`` by ``weight (P, q, k)``, a convolution ``x (N, C, H, W)``
    to ``(N, outputs, H', W')`` by ``weight (P, *kernel, q, k)``; both accept any strides. Spectra are ``[F, ...]`` in
    ``dtype``, or ``[terms, F, ...]`` in scaled float16, with an inverse scale ``[1]`` each. With ``relu``, the output
    is that of a ReLU.
    """
    return _run_layer(x, weight, signs, bias, outputs, tuple(window), dtype, scaled, relu)


@cached_launches
def _run_layer(
    x: Tensor, weight: Tensor, signs: Tensor | None, bias: Tensor | None, outputs: int, window: tuple[int, ...],
    dtype: torch.dtype, scaled: bool, relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    sizes, k = Conv2dProblem.unpack(window), weight.shape[-1]
    out, xs, ws, x_scale_inv, w_scale_inv = _layer_like(x, weight, outputs, sizes, dtype, scaled)
    x, w, y = _rows(x, weight.dim()), _columns(weight), _rows(out, weight.dim())
    headroom = 1.0
    if scaled:
        headroom = scaled_fp16.output_headroom(sizes.taps * ws.shape[-1], num_terms(xs))
        scaled_fp16.spectra(x, w, signs, xs, ws, x_scale_inv, w_scale_inv, k, sizes.groups)
    else:
        run_dft(x, w, signs, xs, ws, k, sizes.groups, False, pair=True)
    ys = output_spectrum_like(xs, ws, sizes)
    run_spectral_matmul(xs, ws, ys, sizes, backward_data=False, output_scale=1 / headroom)
    bias = None if bias is None else bias.contiguous()
    scale_invs = x_scale_inv, w_scale_inv, w_scale_inv
    run_idft(ys, ys, None, bias, y, y, k, sizes.groups, False, False, scale_invs, scaled * headroom, relu=relu)
    return out, xs, ws, x_scale_inv, w_scale_inv


@torch.library.custom_op("lamina::circulant_layer_backward", mutates_args=())
def layer_backward(
    dy: Tensor, xs: Tensor, ws: Tensor, x_scale_inv: Tensor | None, w_scale_inv: Tensor | None, signs: Tensor | None,
    window: list[int], x_shape: list[int], w_shape: list[int], channels_last: bool, x_dtype: torch.dtype,
    w_dtype: torch.dtype, for_x: bool, for_w: bool, bias_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of `layer` with respect to ``x``, ``weight`` and a bias of ``bias_dtype``; empty if not requested.

    Inverse scales are those of scaled spectra; others have none.
    """
    spectra, shapes = (xs, ws, x_scale_inv, w_scale_inv), (tuple(x_shape), tuple(w_shape))
    return _run_layer_backward(
        dy, *spectra, signs, tuple(window), *shapes, channels_last, x_dtype, w_dtype, for_x, for_w, bias_dtype
    )


@cached_launches
def _run_layer_backward(
    dy: Tensor, xs: Tensor, ws: Tensor, x_scale_inv: Tensor | None, w_scale_inv: Tensor | None, signs: Tensor | None,
    window: tuple[int, ...], x_shape: tuple[int, ...], w_shape: tuple[int, ...], channels_last: bool,
    x_dtype: torch.dtype, w_dtype: torch.dtype, for_x: bool, for_w: bool, bias_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    bias = dy.new_empty(0) if bias_dtype is None else bias_gradient(dy, len(w_shape) == LINEAR, bias_dtype)
    sizes, k, scaled = Conv2dProblem.unpack(window), w_shape[-1], xs.dim() > 4
    grads = _layer_backward_like(dy, x_shape, w_shape, channels_last, x_dtype, w_dtype, for_x, for_w)
    if not (for_x or for_w):
        return *grads, bias
    dy, dx = _rows(dy, len(w_shape)), _rows(grads[0], len(w_shape)) if for_x else grads[0]
    dw = _columns(grads[1]) if for_w else grads[1]
    dys = spectrum_like(dy, k, sizes.groups, xs.dtype, *xs.shape[:-4])
    y_scale_inv, headroom = dy.new_empty(int(scaled), dtype=torch.float32), 1.0
    if scaled:
        headroom = scaled_fp16.output_headroom(sizes.taps * dys.shape[-1] // sizes.groups, num_terms(dys))
        scaled_fp16.spectra(dy, None, None, dys, dys, y_scale_inv, y_scale_inv, k, sizes.groups)
    else:
        run_dft(dy, dy, None, dys, dys, k, sizes.groups, False, pair=False)
    dxs = input_spectrum_like(dys, ws, sizes) if for_x else None
    if dxs is not None and not for_w:
        scale_invs = y_scale_inv, w_scale_inv, w_scale_inv
        run_spectral_matmul(dys, ws, dxs, sizes, backward_data=True, output_scale=1 / headroom)
        run_idft(dxs, dxs, signs, None, dx, dx, k, sizes.groups, False, False, scale_invs, scaled * headroom)
        return *grads, bias
    dws = run_spectral_matmul_backward(dys, xs, ws, dxs, sizes, 1 / headroom if scaled else None)
    if dxs is None or not scaled:  # otherwise the inverse transform of both gradients reduces the split-K partials
        dws = reduce_split_k(dws, torch.float32 if scaled else dys.dtype)
    if dxs is None:
        scale_invs = y_scale_inv, x_scale_inv, x_scale_inv
        run_idft(dws, dws, None, None, dw, dw, k, 1, True, False, scale_invs, 1.0 * scaled)
    else:
        scale_invs = y_scale_inv, w_scale_inv, x_scale_inv
        descales = scaled * headroom, 1.0 * scaled
        run_idft(dxs, dws, signs, None, dx, dw, k, sizes.groups, False, True, scale_invs, *descales)
    return *grads, bias


def _rows(x: Tensor, axes: int) -> Tensor:
    """The view ``(N, C, L)`` of an input or output of a layer whose weight has ``axes`` dimensions."""
    return x.reshape(-1, x.shape[-1])[..., None] if axes == LINEAR else x.flatten(2)


def _columns(weight: Tensor) -> Tensor:
    """The view ``(P, q*k, taps)`` of a weight ``(P, *kernel, q, k)``."""
    return weight.reshape(weight.shape[0], -1, weight.shape[-2] * weight.shape[-1]).mT


def _like(like: Tensor, shape: Sequence[int], channels_last: bool, dtype: torch.dtype) -> Tensor:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(tuple(shape), dtype=dtype, device=like.device, memory_format=layout)


def _layer_like(
    x: Tensor, weight: Tensor, outputs: int, window: Conv2dProblem, dtype: torch.dtype, scaled: bool
) -> tuple[Tensor, ...]:
    spectral, k = (torch.float16, scaled_fp16.num_terms()) if scaled else (dtype,), weight.shape[-1]
    if weight.dim() == LINEAR:
        y = _like(x, (*x.shape[:-1], outputs), False, dtype)
    else:
        shape = x.shape[0], outputs, window.out_height, window.out_width
        y = _like(x, shape, _is_channels_last(x, weight), dtype)
    xs = spectrum_like(_rows(x, weight.dim()), k, window.groups, *spectral)
    scale_invs = [x.new_empty(int(scaled), dtype=torch.float32) for _ in range(2)]
    return y, xs, spectrum_like(_columns(weight), k, 1, *spectral), *scale_invs


def _is_channels_last(x: Tensor, weight: Tensor) -> bool:
    """Whether the channels of a pixel are contiguous."""
    return weight.dim() > LINEAR and x.stride(1) == 1 and x.shape[2] * x.shape[3] > 1


def _layer_backward_like(
    dy: Tensor, x_shape: Sequence[int], w_shape: Sequence[int], channels_last: bool, x_dtype: torch.dtype,
    w_dtype: torch.dtype, for_x: bool, for_w: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    dx = _like(dy, x_shape if for_x else (0,), channels_last and for_x, x_dtype)
    return dx, _like(dy, w_shape if for_w else (0,), False, w_dtype)


@layer.register_fake
def _(
    x: Tensor, weight: Tensor, signs: Tensor | None, bias: Tensor | None, outputs: int, window: list[int],
    dtype: torch.dtype, scaled: bool, relu: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    return _layer_like(x, weight, outputs, Conv2dProblem.unpack(window), dtype, scaled)


@layer_backward.register_fake
def _(
    dy: Tensor, xs: Tensor, ws: Tensor, x_scale_inv: Tensor | None, w_scale_inv: Tensor | None, signs: Tensor | None,
    window: list[int], x_shape: list[int], w_shape: list[int], channels_last: bool, x_dtype: torch.dtype,
    w_dtype: torch.dtype, for_x: bool, for_w: bool, bias_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    grads = _layer_backward_like(dy, x_shape, w_shape, channels_last, x_dtype, w_dtype, for_x, for_w)
    channels = dy.shape[-1] if len(w_shape) == LINEAR else dy.shape[1]
    return *grads, dy.new_empty(0) if bias_dtype is None else dy.new_empty(channels, dtype=bias_dtype)


def _save_layer(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, signs, bias, _, window, _, ctx.scaled, relu = inputs
    ctx.window, ctx.bias_dtype = tuple(window), None if bias is None else bias.dtype
    ctx.like = tuple(x.shape), tuple(weight.shape), _is_channels_last(x, weight), x.dtype, weight.dtype
    y, *spectra = output
    # Double backward differentiates through the saved spectra; scaled spectra are not differentiable.
    ctx.mark_non_differentiable(*spectra if ctx.scaled else spectra[2:])
    ctx.set_materialize_grads(False)
    # Each saved tensor is an output of a compiled graph: empty scales are not saved.
    saved = (*spectra, x, weight) if ctx.scaled else (*spectra[:2], None, None)
    ctx.save_for_backward(y if relu else None, signs, *saved)


def _layer_gradient(ctx: Any, gy: Tensor | None, gxs: Tensor | None, gws: Tensor | None, *_: None) -> tuple[Any, ...]:
    for_x, for_w, _, for_bias, *_ = ctx.needs_input_grad
    y, signs, *saved = ctx.saved_tensors
    linear, bias, missing = len(ctx.like[1]) == LINEAR, None, None
    if gy is not None:
        gy, bias = relu_gradients(gy, y, linear, ctx.bias_dtype if for_bias else None)
        missing = ctx.bias_dtype if for_bias and bias is None else None
    dx = dw = sums = None
    if torch.is_grad_enabled() or gxs is not None or gws is not None:
        dx, dw = _differentiable(ctx, gy, gxs, gws)
        sums = None if gy is None or missing is None else bias_gradient(gy, linear, missing)
    elif gy is not None:
        arguments = gy, *saved[:4], signs, ctx.window, *ctx.like, for_x, for_w, missing
        dx, dw, sums = call_in_backward(layer_backward, _run_layer_backward, *arguments)
    bias = bias if missing is None else sums
    return dx if for_x else None, dw if for_w else None, None, bias, *(None,) * 5


def _differentiable(ctx: Any, gy: Tensor | None, gxs: Tensor | None, gws: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gradients with respect to ``x`` and ``weight``, by operators that are differentiable themselves."""
    (_, signs, xs, ws, _, _, *operands), groups = ctx.saved_tensors, Conv2dProblem.unpack(ctx.window).groups
    x_shape, w_shape, channels_last, x_dtype, w_dtype = ctx.like
    k, axes = w_shape[-1], len(w_shape)
    if ctx.scaled:
        x, weight = operands
        xs, ws = dft_pair(_rows(x, axes), _columns(weight), signs, k, groups, x_dtype)
    gxs, gws = torch.zeros_like(xs) if gxs is None else gxs, torch.zeros_like(ws) if gws is None else gws
    if gy is not None:
        dys = dft(_rows(gy, axes), None, k, groups, False, xs.dtype)
        dxs, dws = spectral_matmul_backward(dys, xs, ws, list(ctx.window))
        gxs, gws = gxs + dxs, gws + dws
    sizes = (x_shape[-1], 1) if axes == LINEAR else (x_shape[1], x_shape[2] * x_shape[3])
    dx, dw = idft_pair(gxs, gws, signs, k, groups, *sizes, channels_last, x_dtype, prod(w_shape[1:-2]), w_dtype)
    return dx.reshape(x_shape), dw.mT.reshape(w_shape)


layer.register_autograd(_layer_gradient, setup_context=_save_layer)
layer_eager = without_dispatch(layer, _run_layer, _save_layer, _layer_gradient)
register_kernel(layer_backward, _run_layer_backward)


@register_flop_formula(torch.ops.lamina.circulant_layer)
def _(
    x: Any, weight: Any, signs: Any, bias: Any, outputs: int, window: list[int], *_: Any, out_shape: Any, **__: Any
) -> int:
    _, xs, ws, *_ = out_shape
    sizes = Conv2dProblem.unpack(window)
    rows: list[tuple[int, int]] = [(xs[-3], xs[-1]), (ws[-3], ws[-1]), (sizes.rows_out, weight[0])]
    matmuls = spectral_matmul_flops(window, weight[0] // sizes.groups, ws[-1], ws[-4])
    return sum(transform_flops(1, *row, weight[-1]) for row in rows) + matmuls


@register_flop_formula(torch.ops.lamina.circulant_layer_backward)
def _(
    dy: Any, xs: Any, ws: Any, x_scale_inv: Any, w_scale_inv: Any, signs: Any, window: list[int], x_shape: Any,
    w_shape: Any, channels_last: bool, x_dtype: Any, w_dtype: Any, for_x: bool, for_w: bool, *_: Any, **__: Any,
) -> int:  # fmt: skip
    sizes = Conv2dProblem.unpack(window)
    rows: list[tuple[int, int]] = [(sizes.rows_out, w_shape[0])]
    rows += [(xs[-3], xs[-1])] * for_x + [(ws[-3], ws[-1])] * for_w
    matmuls = (for_x + for_w) * spectral_matmul_flops(window, w_shape[0] // sizes.groups, ws[-1], ws[-4])
    return sum(transform_flops(1, *row, w_shape[-1]) for row in rows) + matmuls

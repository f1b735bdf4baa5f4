"""Linear maps of many rows by the fused kernels, forward and backward, as two PyTorch operators.

Rows are in the dtype of the product: 16-bit, or float32 where TF32 is allowed. Weights may be the float32 masters of
autocast, whose gradient is then float32. ``signs (k)``, each 1 or -1, multiply the elements of each block of ``x``, in
the kernels as they read rows. An activation of ``x`` is computed there too, a ReLU of the output, and the gradient of
the bias.
Saved for the backward pass are the rows, the weights, and the spectra of the weights for the input gradient.
Double backward uses the differentiable operators of `ops` and `spectral.ops`.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.common.channel_sums.ops import bias_gradient, relu_gradients
from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.common.graph_constants import graph_constant
from lamina.accelerate.common.operands import transformed
from lamina.accelerate.methods.circulant.activations import activated, gradient_through, named
from lamina.accelerate.methods.circulant.basis import slot_count
from lamina.accelerate.methods.circulant.fused_rows import cuda
from lamina.accelerate.methods.circulant.ops import spectral_matmul_backward, spectral_matmul_flops, tf32
from lamina.accelerate.methods.circulant.spectral.ops import dft, dft_pair, idft_pair, transform_flops
from lamina.accelerate.runtime.eager_op import call_in_backward, without_dispatch
from lamina.accelerate.runtime.launch_cache import cached_launches
from lamina.accelerate.runtime.nvrtc import DTYPE_CODES, Kernel
from lamina.accelerate.runtime.replay import register_kernel
from lamina.errors import LaminaError, MissingError, UnsupportedError

MIN_ROWS = 1000
"""With fewer rows, the three launches of the spectral layer move too few bytes to be slower."""

CAPABILITY = 9
"""The compute capability, a major version, whose shared memory, bulk copies and launches the kernels are made for."""

_ELSE = 'use impl="kernel"'


@graph_constant
def _capability(device: torch.device) -> int:
    """The major version of a device's compute capability; 0 if it is no NVIDIA GPU."""
    if device.type != "cuda" or torch.version.cuda is None:
        return 0
    return torch.cuda.get_device_capability(device)[0]


def check(rows: int, x: Tensor, dtype: torch.dtype, in_features: int, out_features: int, block_size: int) -> None:
    """Check that the kernels compute ``rows`` of ``in_features``, which are on the device of ``x``, in ``dtype``.

    Raises:
        MissingError: ``x`` is not on a GPU.
        UnsupportedError: the kernels are not for this GPU, dtype, block size, width or number of rows.
    """
    if (error := refusal(rows, x, dtype, in_features, out_features, block_size)) is not None:
        raise error


def refusal(
    rows: int, x: Tensor, dtype: torch.dtype, in_features: int, out_features: int, block_size: int
) -> LaminaError | None:
    """What `check` raises; None for what the kernels compute."""
    if transformed():
        return UnsupportedError(f"fused_rows: expected no transform of torch.func, which cannot see kernels; {_ELSE}")
    if cuda.kernel_class is Kernel:
        if x.device.type != "cuda":
            return MissingError(
                f"fused_rows: expected tensors on a CUDA device, got {x.device}; move them there, or use "
                'impl="reference"'
            )
        if (major := _capability(x.device)) != CAPABILITY:
            return UnsupportedError(
                f"fused_rows: expected a GPU of compute capability {CAPABILITY}.x, got {major or 'none'}; {_ELSE}"
            )
    if dtype not in cuda.DTYPES or (dtype == torch.float32 and not tf32()):
        name = str(dtype).removeprefix("torch.")
        return UnsupportedError(
            "fused_rows: expected bfloat16 or float16, also by autocast, or float32 with TF32 allowed, got "
            f"{name}{' without TF32' if dtype == torch.float32 else ''}; {_ELSE}"
        )
    if block_size not in cuda.BLOCK_SIZES:
        return UnsupportedError(f"fused_rows: expected a block size of 16, 32, 64 or 128, got {block_size}; {_ELSE}")
    if in_features % block_size or out_features % block_size:
        return UnsupportedError(
            f"fused_rows: expected multiples of the block size {block_size}, got {in_features} inputs and "
            f"{out_features} outputs; {_ELSE}"
        )
    if rows < MIN_ROWS:
        return UnsupportedError(f"fused_rows: expected at least {MIN_ROWS} rows, got {rows}; {_ELSE}")
    blocks = in_features // block_size, out_features // block_size
    for inputs, outputs in (blocks, blocks[::-1]):
        if not cuda.fits_some_tile(block_size, inputs, outputs, dtype):
            return UnsupportedError(f"fused_rows: {cuda.too_wide(inputs * block_size)}; {_ELSE}")
    return None


def _rows(x: Tensor) -> Tensor:
    """The rows as the kernels read them: a matrix, contiguous and 16-byte aligned; a copy of others."""
    x = x.reshape(-1, x.shape[-1]).contiguous()
    return x.clone() if x.data_ptr() % 16 else x


def _signs(signs: Tensor | None) -> Tensor | None:
    """Signs as the kernels read them, of whatever dtype the layer has."""
    if signs is None:
        return None
    return (signs if signs.dtype in DTYPE_CODES else signs.float()).contiguous()


@cached_launches
def _run(
    x: Tensor, weight: Tensor, signs: Tensor | None, bias: Tensor | None, activation: int, relu: bool
) -> tuple[Tensor, Tensor]:
    p, _, k = weight.shape
    y = x.new_empty(*x.shape[:-1], p * k)
    # First, so that no copy is between the kernels that overlap.
    rows, weight, signs = _rows(x), weight.contiguous(), _signs(signs)
    bias = None if bias is None else bias.float().contiguous()
    forward, backward = cuda.weight_spectra(weight, x.dtype)
    out = y.view(-1, p * k)
    cuda.run_rows(rows, forward, bias, out, k, signs=signs, activation=activation, relu=relu, overlapped=True)
    return y, backward


@torch.library.custom_op("lamina::circulant_fused_rows", mutates_args=())
def linear(
    x: Tensor, weight: Tensor, signs: Tensor | None, bias: Tensor | None, activation: int, relu: bool
) -> tuple[Tensor, Tensor]:
    """``x (..., q*k)`` to ``(..., p*k)``, and the spectra of ``weight (p, q, k)`` for the input gradient.

    ``activation`` is the `code` of what ``x`` passes first; with ``relu``, the output passes a ReLU.
    """
    return _run(x, weight, signs, bias, activation, relu)


@cached_launches
def _run_backward(
    dy: Tensor, x: Tensor, spectra: Tensor, signs: Tensor | None, w_shape: tuple[int, ...], w_dtype: torch.dtype,
    for_x: bool, for_w: bool, activation: int, bias_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dx, dw = _gradients_like(x, w_shape, w_dtype, for_x, for_w)
    dy, signs, k = _rows(dy), _signs(signs), w_shape[-1]
    db, sums = dy.new_empty(0), None
    if bias_dtype is not None and for_x and for_w:  # one kernel reads the rows, and another adds their sums
        db, sums = dy.new_empty(dy.shape[-1], dtype=bias_dtype), cuda.column_sums_like(dy)
    elif bias_dtype is not None:
        db = bias_gradient(dy, True, bias_dtype)
    rows = _rows(x) if for_w or activation else x  # before the kernels that overlap
    if for_x:
        out = dx.view(-1, x.shape[-1])
        through: dict[str, Any] = {"gate": rows if activation else None, "activation": activation}
        cuda.run_rows(dy, spectra, None, out, k, signs=signs, flip_outputs=True, **through, column_sums=sums)
    if for_w:
        options: dict[str, Any] = {"signs": signs, "activation": activation, "overlapped": for_x}
        cuda.run_weight_gradient(dy, rows, dw, **options, column_sums=sums, db=db)
    return dx, dw, db


@torch.library.custom_op("lamina::circulant_fused_rows_backward", mutates_args=())
def linear_backward(
    dy: Tensor, x: Tensor, spectra: Tensor, signs: Tensor | None, w_shape: list[int], w_dtype: torch.dtype,
    for_x: bool, for_w: bool, activation: int, bias_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of `linear` with respect to ``x``, ``weight`` and a bias of ``bias_dtype``; empty if not requested."""
    return _run_backward(dy, x, spectra, signs, tuple(w_shape), w_dtype, for_x, for_w, activation, bias_dtype)


def _gradients_like(
    x: Tensor, w_shape: tuple[int, ...] | list[int], w_dtype: torch.dtype, for_x: bool, for_w: bool
) -> tuple[Tensor, Tensor]:
    dx = x.new_empty(x.shape if for_x else (0,))
    return dx, x.new_empty(tuple(w_shape) if for_w else (0,), dtype=w_dtype)


@linear.register_fake
def _(x: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    p, q, k = weight.shape
    return x.new_empty(*x.shape[:-1], p * k), cuda.spectra_like(weight, q, p, x.dtype)


@linear_backward.register_fake
def _(
    dy: Tensor, x: Tensor, spectra: Tensor, signs: Tensor | None, w_shape: list[int], w_dtype: torch.dtype,
    for_x: bool, for_w: bool, activation: int, bias_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    bias = dy.new_empty(0) if bias_dtype is None else dy.new_empty(dy.shape[-1], dtype=bias_dtype)
    return *_gradients_like(x, w_shape, w_dtype, for_x, for_w), bias


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, signs, bias, ctx.activation, relu = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.w_shape, ctx.w_dtype = tuple(weight.shape), weight.dtype
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, output[1], signs, output[0] if relu else None)


def _gradient(ctx: Any, gy: Tensor | None, *_: None) -> tuple[Any, ...]:
    (x, weight, spectra, signs, y), (for_x, for_w, _, for_bias, *_) = ctx.saved_tensors, ctx.needs_input_grad
    if gy is None:
        return (None,) * 6
    gy, bias = relu_gradients(gy, y, True, ctx.bias_dtype if for_bias else None)
    missing = ctx.bias_dtype if for_bias and bias is None else None
    if torch.is_grad_enabled():
        dx, dw = differentiable_gradients(gy, x, weight, signs, ctx.activation)
        sums = None if missing is None else bias_gradient(gy, True, missing)
    else:
        arguments = gy, x, spectra, signs, ctx.w_shape, ctx.w_dtype, for_x, for_w, ctx.activation, missing
        dx, dw, sums = call_in_backward(linear_backward, _run_backward, *arguments)
    bias = bias if missing is None else sums
    return dx if for_x else None, dw if for_w else None, None, bias, None, None


def differentiable_gradients(
    gy: Tensor, x: Tensor, weight: Tensor, signs: Tensor | None, activation: int = 0
) -> tuple[Tensor, Tensor]:
    """Gradients with respect to ``x`` and ``weight``, by operators that are differentiable themselves."""
    if (name := named(activation)) is not None:
        dx, dw = differentiable_gradients(gy, activated(x, name), weight, signs)
        return gradient_through(dx, x, name), dw
    k, rows, dy = weight.shape[-1], x.reshape(-1, x.shape[-1], 1), gy.reshape(-1, gy.shape[-1], 1)
    xs, ws = dft_pair(rows, weight.flatten(1)[..., None], signs, k, 1, x.dtype)
    dys = dft(dy, None, k, 1, False, x.dtype)
    dxs, dws = spectral_matmul_backward(dys, xs, ws, Conv2dProblem(rows.shape[0]).pack())
    dx, dw = idft_pair(dxs, dws, signs, k, 1, rows.shape[1], 1, False, x.dtype, 1, weight.dtype)
    return dx.reshape(x.shape), dw.mT.reshape(weight.shape)


linear.register_autograd(_gradient, setup_context=_save)
linear_eager = without_dispatch(linear, _run, _save, _gradient)
register_kernel(linear_backward, _run_backward)


def _flops(x: Any, w_shape: Any, products: int) -> int:
    """FLOPs of transforms of rows, of outputs and of weights, and of spectral products."""
    rows, (p, q, k) = prod(x[:-1]), w_shape
    transforms = sum(transform_flops(1, *each, k) for each in ((rows, q), (rows, p), (p, q)))
    return transforms + products * spectral_matmul_flops(Conv2dProblem(rows).pack(), p, q, slot_count(k))


@register_flop_formula(torch.ops.lamina.circulant_fused_rows)
def _(x: Any, weight: Any, *_: Any, **__: Any) -> int:
    return _flops(x, weight, 1)


@register_flop_formula(torch.ops.lamina.circulant_fused_rows_backward)
def _(
    dy: Any, x: Any, spectra: Any, signs: Any, w_shape: Any, w_dtype: Any, for_x: bool, for_w: bool, *_: Any, **__: Any
) -> int:
    return (for_x or for_w) * _flops(x, w_shape, for_x + for_w)

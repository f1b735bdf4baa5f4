"""The kernels as PyTorch operators with their derivatives.

In the backward pass one kernel computes the gradient of the activation and of the bias; the two GEMMs are the vendor
library's. float32 products follow ``torch.backends.cuda.matmul.fp32_precision``, with 3xTF32 for full float32.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.common.channel_sums.ops import channel_sums
from lamina.accelerate.common.geometry import Pool2dGeometry
from lamina.accelerate.methods.fusion import kernels
from lamina.accelerate.methods.fusion.tiles import linear_tile, pixel_tile, row_tile
from lamina.accelerate.runtime.eager_op import call_in_backward, without_dispatch
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.replay import register_kernel
from lamina.accelerate.runtime.triton_ops import GROUP_SIZE_M, INTERPRETED, check_kernel_operand, index_type, precision

FROM_ARGUMENT = ("gelu", "gelu_tanh")
"""Activations whose derivative needs their input."""

KERNELS = ("fusion", 'use impl="reference"')
"""For error messages: whose kernels, and the alternative."""


def _constexprs(l1_bypass: bool, *tensors: Tensor) -> dict[str, Any]:
    check_kernel_operand(tensors[0], *KERNELS)
    return {
        "CACHE": ".cg" if l1_bypass else "",
        "UPCAST": INTERPRETED,
        "INDEX": index_type(*tensors),
    }


def _kept(y: Tensor, activation: str, keep: bool) -> Tensor:
    """The output for the activation's input; empty if it is not needed."""
    return torch.empty_like(y) if keep and activation in FROM_ARGUMENT else y.new_empty(0)


def run_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, keep: bool, l1_bypass: bool
) -> tuple[Tensor, Tensor]:
    """``activation(x W^T + b)`` of ``x (rows, in)`` and ``weight (out, in)``, and with ``keep`` the activation's
    input, which the backward pass of GELU needs."""
    (rows, summed), columns = x.shape, weight.shape[0]
    y = x.new_empty(rows, columns)
    z = _kept(y, activation, keep)
    tile = linear_tile(rows, columns, summed, x.itemsize)
    partials = x.new_empty((tile.split_k, rows, columns) if tile.split_k > 1 else 0, dtype=torch.float32)
    common = _constexprs(l1_bypass, x, weight, y, partials)
    cache, at = common.pop("CACHE"), {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n}
    epilogue = {"ACTIVATION": activation, "BIAS": bias is not None, "KEEP": z.numel() > 0, "SPLIT_K": tile.split_k}
    offset = y if bias is None else bias.contiguous()
    tiles = -(-rows // tile.block_m) * -(-columns // tile.block_n)
    launch(
        kernels.linear_kernel, (tiles * tile.split_k,), x,
        x, weight, offset, y, z, partials, rows, columns, summed, *x.stride(), *weight.stride(),
        **epilogue, **at, BLOCK_K=tile.block_k, GROUP_M=GROUP_SIZE_M, PRECISION=precision(), CACHE=cache, **common,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    if tile.split_k > 1:
        small = {"BLOCK_M": min(tile.block_m, 16), "BLOCK_N": min(tile.block_n, 128)}
        programs = -(-rows // small["BLOCK_M"]) * -(-columns // small["BLOCK_N"])
        launch(
            kernels.finish_kernel, (programs,), x, partials, offset, y, z, rows, columns, **epilogue, **small, **common
        )
    return y, z


linear = torch.library.custom_op("lamina::fused_linear", run_linear, mutates_args=())


def run_linear_cublaslt(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``relu(x W^T + b)`` by cuBLASLt's epilogue."""
    y: Tensor = torch._addmm_activation(bias, x, weight.t(), use_gelu=False)
    return y


linear_cublaslt = torch.library.custom_op("lamina::fused_linear_cublaslt", run_linear_cublaslt, mutates_args=())


def run_activation_backward(dy: Tensor, saved: Tensor, activation: str, l1_bypass: bool) -> tuple[Tensor, Tensor]:
    """The gradient of the activation's input ``(rows, columns)``, and its column sums in float32."""
    rows, columns = dy.shape
    dz, saved = dy.new_empty(rows, columns), saved.contiguous()
    tile = row_tile(rows, columns)
    down = -(-rows // tile.pixels)
    sums = dy.new_empty(down, columns, dtype=torch.float32)
    launch(
        kernels.activation_backward_kernel, (down * -(-columns // tile.channels),), dy,
        dy, saved, dz, sums, rows, columns, *dy.stride(),
        ACTIVATION=activation, BLOCK_M=tile.pixels, BLOCK_N=tile.channels, **_constexprs(l1_bypass, dy, dz),
        num_warps=tile.num_warps,
    )  # fmt: skip
    return dz, _total(sums)


activation_backward = torch.library.custom_op(
    "lamina::fused_activation_backward", run_activation_backward, mutates_args=()
)


def run_bias_relu_max_pool(x: Tensor, bias: Tensor | None, window: list[int], l1_bypass: bool) -> tuple[Tensor, Tensor]:
    """``max_pool(relu(x + b))`` of ``x (N, C, H, W)``, and the tap of each window's maximum, -1 for none."""
    x = x.contiguous(memory_format=_format(x))
    y, winners = _pooled_like(x, window)
    sizes, strides = _plan(x, y, window)
    tile = pixel_tile(sizes["OH"] * sizes["OW"], x.shape[1], sizes["LAST"])
    tiles = -(-sizes["OH"] * sizes["OW"] // tile.pixels)
    launch(
        kernels.pool_kernel, (x.shape[0] * tiles, -(-x.shape[1] // tile.channels)), x,
        x, y if bias is None else bias.contiguous(), y, winners, x.shape[1], tiles, *strides[0], *strides[1],
        **sizes, BIAS=bias is not None, BLOCK_P=tile.pixels, BLOCK_C=tile.channels, **_constexprs(l1_bypass, x),
        num_warps=tile.num_warps,
    )  # fmt: skip
    return y, winners


bias_relu_max_pool = torch.library.custom_op(
    "lamina::fused_bias_relu_max_pool", run_bias_relu_max_pool, mutates_args=()
)


def run_bias_relu_max_pool_backward(
    dy: Tensor, winners: Tensor, height: int, width: int, window: list[int], l1_bypass: bool
) -> tuple[Tensor, Tensor]:
    """The gradient of the input, in the layout of ``winners``, and that of the bias in float32."""
    dy = dy.contiguous(memory_format=_format(winners))
    dx = _unpooled_like(dy, winners, height, width)
    sizes, strides = _plan(dx, winners, window)
    tile = pixel_tile(height * width, dx.shape[1], sizes["LAST"])
    tiles = -(-height * width // tile.pixels)
    sums = dy.new_empty(dx.shape[0] * tiles, dx.shape[1], dtype=torch.float32)
    launch(
        kernels.pool_backward_kernel, (dx.shape[0] * tiles, -(-dx.shape[1] // tile.channels)), dy,
        dy, winners, dx, sums, dx.shape[1], tiles, *strides[1], *strides[0],
        **sizes, BLOCK_P=tile.pixels, BLOCK_C=tile.channels, **_constexprs(l1_bypass, dx), num_warps=tile.num_warps,
    )  # fmt: skip
    return dx, _total(sums)


bias_relu_max_pool_backward = torch.library.custom_op(
    "lamina::fused_bias_relu_max_pool_backward", run_bias_relu_max_pool_backward, mutates_args=()
)


def _total(sums: Tensor) -> Tensor:
    """The sum of partial sums, in order."""
    return sums.view(-1) if sums.shape[0] == 1 else channel_sums(sums[..., None], sums.dtype)


def _format(x: Tensor) -> torch.memory_format:
    """The memory format of an image; contiguous if it has neither."""
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format


def _pooled_like(x: Tensor, window: list[int]) -> tuple[Tensor, Tensor]:
    out = Pool2dGeometry.unpack(window).output_size(x.shape[2], x.shape[3])
    shape, layout = (x.shape[0], x.shape[1], *out), _format(x)
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)
    return y, torch.empty(shape, dtype=torch.int8, device=x.device, memory_format=layout)


def _unpooled_like(dy: Tensor, winners: Tensor, height: int, width: int) -> Tensor:
    shape = (*dy.shape[:2], height, width)
    return torch.empty(shape, dtype=dy.dtype, device=dy.device, memory_format=_format(winners))


def _plan(x: Tensor, y: Tensor, window: list[int]) -> tuple[dict[str, Any], tuple[tuple[int, ...], tuple[int, ...]]]:
    """Constexpr sizes of a pooling kernel, and the strides of its input and output.

    Without pooling an image is one row of pixels.
    """
    pool = Pool2dGeometry.unpack(window)
    steps = {**pool.constexprs(), "LAST": _format(y) is torch.channels_last}
    if not pool.pointwise:
        (height, width), (out_height, out_width) = x.shape[2:], y.shape[2:]
        return {"H": height, "W": width, "OH": out_height, "OW": out_width, **steps}, (x.stride(), y.stride())
    pixels = x.shape[2] * x.shape[3]
    flat = tuple((s[0], s[1], 0, x.shape[1] if steps["LAST"] else 1) for s in (x.stride(), y.stride()))
    return {"H": 1, "W": pixels, "OH": 1, "OW": pixels, **steps}, (flat[0], flat[1])


@linear.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, keep: bool, l1_bypass: bool
) -> tuple[Tensor, Tensor]:
    y = x.new_empty(x.shape[0], weight.shape[0])
    return y, _kept(y, activation, keep)


@linear_cublaslt.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


@activation_backward.register_fake
def _(dy: Tensor, saved: Tensor, activation: str, l1_bypass: bool) -> tuple[Tensor, Tensor]:
    return dy.new_empty(dy.shape), dy.new_empty(dy.shape[1], dtype=torch.float32)


@bias_relu_max_pool.register_fake
def _(x: Tensor, bias: Tensor | None, window: list[int], l1_bypass: bool) -> tuple[Tensor, Tensor]:
    return _pooled_like(x, window)


@bias_relu_max_pool_backward.register_fake
def _(
    dy: Tensor, winners: Tensor, height: int, width: int, window: list[int], l1_bypass: bool
) -> tuple[Tensor, Tensor]:
    return _unpooled_like(dy, winners, height, width), dy.new_empty(dy.shape[1], dtype=torch.float32)


def _linear_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, ctx.activation, _, ctx.l1_bypass = inputs
    ctx.biased = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight, output[1] if ctx.activation in FROM_ARGUMENT else output[0])


def _linear_backward(ctx: Any, dy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, saved = ctx.saved_tensors
    return *_gradients(ctx, dy, x, weight, saved, ctx.activation, ctx.l1_bypass), None, None, None


def _cublaslt_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.biased = bias.dtype
    ctx.save_for_backward(x, weight, output)


def _cublaslt_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, y = ctx.saved_tensors
    return _gradients(ctx, dy, x, weight, y, "relu", False)


def _gradients(
    ctx: Any, dy: Tensor, x: Tensor, weight: Tensor, saved: Tensor, activation: str, l1_bypass: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    dz, sums = call_in_backward(activation_backward, run_activation_backward, dy, saved, activation, l1_bypass)
    for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
    return (
        dz @ weight if for_x else None,
        dz.t() @ x if for_weight else None,
        sums.to(ctx.biased) if for_bias and ctx.biased is not None else None,
    )


def _pool_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, bias, ctx.window, ctx.l1_bypass = inputs
    ctx.size, ctx.biased = x.shape[2:], None if bias is None else bias.dtype
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])


def _pool_backward(ctx: Any, dy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    arguments = dy, *ctx.saved_tensors, *ctx.size, ctx.window, ctx.l1_bypass
    dx, sums = call_in_backward(bias_relu_max_pool_backward, run_bias_relu_max_pool_backward, *arguments)
    return dx, None if ctx.biased is None else sums.to(ctx.biased), None, None


linear.register_autograd(_linear_backward, setup_context=_linear_setup)
linear_cublaslt.register_autograd(_cublaslt_backward, setup_context=_cublaslt_setup)
bias_relu_max_pool.register_autograd(_pool_backward, setup_context=_pool_setup)

linear_eager = without_dispatch(linear, run_linear, _linear_setup, _linear_backward)
linear_cublaslt_eager = without_dispatch(linear_cublaslt, run_linear_cublaslt, _cublaslt_setup, _cublaslt_backward)
bias_relu_max_pool_eager = without_dispatch(bias_relu_max_pool, run_bias_relu_max_pool, _pool_setup, _pool_backward)
register_kernel(activation_backward, run_activation_backward)
register_kernel(bias_relu_max_pool_backward, run_bias_relu_max_pool_backward)


@register_flop_formula([torch.ops.lamina.fused_linear, torch.ops.lamina.fused_linear_cublaslt])
def _(x: torch.Size, weight: torch.Size, *args: Any, **kwargs: Any) -> int:
    return 2 * x[0] * x[1] * weight[0]

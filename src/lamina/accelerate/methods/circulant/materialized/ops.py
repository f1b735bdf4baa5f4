"""Linear layers and dense matrices from materialized circulant blocks, as PyTorch operators.

The linear layer and its two gradients are the partial derivatives of one trilinear form, and the dense matrix and its
diagonal sums are each other's transposes: gradients of any order are again these operators.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.common.tiling import clamp, next_power_of_2
from lamina.accelerate.methods.circulant.materialized import kernels
from lamina.accelerate.methods.circulant.ops import common_constexprs, launch_options
from lamina.accelerate.methods.circulant.tiles import materialized_linear_tile
from lamina.accelerate.runtime.eager_op import call_in_backward, without_dispatch
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.launch_cache import cached_launches
from lamina.accelerate.runtime.replay import register_kernel

_BLOCK, _SUM_BLOCK, _BLOCK_T = 1024, 32, 64
"""Elements of the dense matrix per program; diagonal sums per program, and elements of each sum per iteration."""


@cached_launches
def _run_linear(a: Tensor, w: Tensor, features: int, backward_data: bool) -> Tensor:
    w, (_, q, k) = w.contiguous(), w.shape
    rows, summed = a.shape
    out = a.new_empty(rows, features)
    tile = materialized_linear_tile(rows, summed)
    out_features, in_features = (summed, features) if backward_data else (features, summed)
    launch(
        kernels.linear_kernel, -(-rows // tile.block_m) * -(-features // tile.block_n), a,
        a, w, out, rows, out_features, in_features, q, *a.stride(),
        K=k, BACKWARD_DATA=backward_data, BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k,
        **common_constexprs(a.dtype, summed, a, w, out), **launch_options(tile),
    )  # fmt: skip
    return out


@torch.library.custom_op("lamina::circulant_materialized_linear", mutates_args=())
def linear(x: Tensor, w: Tensor, out_features: int) -> Tensor:
    """``x (rows, in_features)`` times circulant tiles of ``w (p, q, k)``, built by the kernel."""
    return _run_linear(x, w, out_features, False)


@torch.library.custom_op("lamina::circulant_materialized_linear_backward_data", mutates_args=())
def linear_backward_data(dy: Tensor, w: Tensor, in_features: int) -> Tensor:
    """The input gradient of `linear`."""
    return _run_linear(dy, w, in_features, True)


def _run_linear_gradients(dy: Tensor, x: Tensor, w: Tensor | None, dx: Tensor | None, dw: Tensor) -> None:
    """Write the weight gradient to ``dw``, and with ``w`` and ``dx`` the input gradient to ``dx``."""
    (rows, out_features), (p, q, k) = dy.shape, dw.shape
    tile = materialized_linear_tile(rows, out_features)
    data_tiles = 0 if dx is None else -(-rows // tile.block_m) * -(-x.shape[1] // tile.block_n)
    padded_k = max(16, next_power_of_2(k))
    launch(
        kernels.linear_backward_kernel, data_tiles + p * q, dy,
        dy, x, x if w is None else w.contiguous(), x if dx is None else dx, dw,
        data_tiles, rows, out_features, x.shape[1], q, *dy.stride(), *x.stride(),
        K=k, BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k,
        PADDED_K=padded_k, W_BLOCK_N=min(padded_k, 64), W_BLOCK_K=clamp(16, next_power_of_2(rows), 64),
        **common_constexprs(x.dtype, min(out_features, rows * k), dy, x, dw), **launch_options(tile),
    )  # fmt: skip


@torch.library.custom_op("lamina::circulant_materialized_linear_backward_weight", mutates_args=())
def linear_backward_weight(dy: Tensor, x: Tensor, block_size: int, dtype: torch.dtype) -> Tensor:
    """The weight gradient of `linear`, ``(p, q, k)`` in ``dtype``."""
    dw = _weight_like(dy, x, block_size, dtype)
    _run_linear_gradients(dy, x, None, None, dw)
    return dw


@torch.library.custom_op("lamina::circulant_materialized_linear_backward", mutates_args=())
def linear_backward(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """`linear_backward_data` and `linear_backward_weight` in one launch."""
    return _run_linear_backward(dy, x, w)


@cached_launches
def _run_linear_backward(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    dx, dw = x.new_empty(x.shape), _weight_like(dy, x, w.shape[-1], w.dtype)
    _run_linear_gradients(dy, x, w, dx, dw)
    return dx, dw


def _weight_like(dy: Tensor, x: Tensor, block_size: int, dtype: torch.dtype) -> Tensor:
    return x.new_empty(-(-dy.shape[1] // block_size), -(-x.shape[1] // block_size), block_size, dtype=dtype)


@cached_launches
def run_dense_matrix(
    w: Tensor, signs: Tensor | None, out_features: int, in_features: int, groups: int, channels_last: bool
) -> Tensor:
    """The dense matrix ``(out_features, in_features, taps)`` of ``w (P, taps, q, k)``, with ``groups`` stacked along
    the rows.

    ``signs (k)`` multiply the columns of each block.
    """
    w, (rows, taps, q, k) = w.contiguous(), w.shape
    out = _dense_like(w, out_features, in_features, channels_last)
    constexprs = common_constexprs(w.dtype, 1, w, out)
    del constexprs["PRECISION"], constexprs["UPCAST"]
    launch(
        kernels.dense_matrix_kernel, -(-out.numel() // _BLOCK), w,
        w, w if signs is None else signs, out, out.numel(), out_features // groups, in_features, rows // groups, q,
        TAPS=taps, K=k, BLOCK=_BLOCK, CHANNELS_LAST=channels_last, SIGN_FLIPS=signs is not None, **constexprs,
    )  # fmt: skip
    return out


def _dense_like(w: Tensor, rows: int, columns: int, channels_last: bool) -> Tensor:
    taps = w.shape[1]
    strides = (taps * columns, 1, columns) if channels_last else (taps * columns, taps, 1)
    return w.new_empty_strided((rows, columns, taps), strides)


@cached_launches
def run_diagonal_sums(dense: Tensor, signs: Tensor | None, block_size: int, groups: int) -> Tensor:
    """The transpose of `dense_matrix`: the sums of the wrapped diagonals of each block, ``(P, taps, q, k)``."""
    out_features, in_features, taps = dense.shape
    channels_last = is_matrix_channels_last(dense)
    dense = dense if channels_last else dense.contiguous()
    p, q = -(-(out_features // groups) // block_size), -(-in_features // block_size)
    out = dense.new_empty(groups * p, taps, q, block_size)
    constexprs = common_constexprs(dense.dtype, block_size, dense, out)
    del constexprs["PRECISION"]
    launch(
        kernels.diagonal_sums_kernel, -(-out.numel() // _SUM_BLOCK), dense,
        dense, dense if signs is None else signs, out, out.numel(), out_features // groups, in_features, p, q,
        TAPS=taps, K=block_size, BLOCK=_SUM_BLOCK, BLOCK_T=min(_BLOCK_T, next_power_of_2(block_size)),
        CHANNELS_LAST=channels_last,
        SIGN_FLIPS=signs is not None, **constexprs,
    )  # fmt: skip
    return out


def is_matrix_channels_last(dense: Tensor) -> bool:
    """Whether the second dimension is innermost and the tensor has no gaps."""
    return dense.mT.is_contiguous()


@linear.register_fake
def _(x: Tensor, w: Tensor, out_features: int) -> Tensor:
    return x.new_empty(x.shape[0], out_features)


@linear_backward_data.register_fake
def _(dy: Tensor, w: Tensor, in_features: int) -> Tensor:
    return dy.new_empty(dy.shape[0], in_features)


@linear_backward_weight.register_fake
def _(dy: Tensor, x: Tensor, block_size: int, dtype: torch.dtype) -> Tensor:
    return _weight_like(dy, x, block_size, dtype)


@linear_backward.register_fake
def _(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), _weight_like(dy, x, w.shape[-1], w.dtype)


dense_matrix = torch.library.custom_op("lamina::circulant_dense_matrix", run_dense_matrix, mutates_args=())


@dense_matrix.register_fake
def _(w: Tensor, signs: Tensor | None, out_features: int, in_features: int, groups: int, channels_last: bool) -> Tensor:
    return _dense_like(w, out_features, in_features, channels_last)


diagonal_sums = torch.library.custom_op("lamina::circulant_diagonal_sums", run_diagonal_sums, mutates_args=())


@diagonal_sums.register_fake
def _(dense: Tensor, signs: Tensor | None, block_size: int, groups: int) -> Tensor:
    p, q = -(-(dense.shape[0] // groups) // block_size), -(-dense.shape[1] // block_size)
    return dense.new_empty(groups * p, dense.shape[2], q, block_size)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*(each for each in inputs if isinstance(each, Tensor)))


def _linear_gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    x, w = ctx.saved_tensors
    match ctx.needs_input_grad[:2]:
        case [True, True]:
            return *call_in_backward(linear_backward, _run_linear_backward, g, x, w), None
        case [True, False]:
            return linear_backward_data(g, w, x.shape[1]), None, None
        case _:
            return None, linear_backward_weight(g, x, w.shape[-1], w.dtype), None


def _linear_backward_data_gradient(ctx: Any, h: Tensor) -> tuple[Any, ...]:
    dy, w = ctx.saved_tensors
    for_dy, for_w, _ = ctx.needs_input_grad
    return (
        linear(h, w, dy.shape[1]) if for_dy else None,
        linear_backward_weight(dy, h, w.shape[-1], w.dtype) if for_w else None,
        None,
    )


def _linear_backward_weight_gradient(ctx: Any, h: Tensor) -> tuple[Any, ...]:
    dy, x = ctx.saved_tensors
    for_dy, for_x, *_ = ctx.needs_input_grad
    return (
        linear(x, h, dy.shape[1]) if for_dy else None,
        linear_backward_data(dy, h, x.shape[1]) if for_x else None,
        None,
        None,
    )


def _linear_backward_gradient(ctx: Any, hx: Tensor, hw: Tensor) -> tuple[Any, ...]:
    dy, x, w = ctx.saved_tensors
    for_dy, for_x, for_w = ctx.needs_input_grad
    return (
        linear(hx, w, dy.shape[1]) + linear(x, hw, dy.shape[1]) if for_dy else None,
        *(linear_backward(dy, hx, hw) if for_x or for_w else (None, None)),
    )


def _save_dense_matrix(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    w, signs, _, _, groups, _ = inputs
    ctx.save_for_backward(signs)
    ctx.blocks = w.shape[-1], groups


def _dense_matrix_gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    return call_in_backward(diagonal_sums, run_diagonal_sums, g, *ctx.saved_tensors, *ctx.blocks), *(None,) * 5


def _save_diagonal_sums(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    dense, signs, _, groups = inputs
    ctx.save_for_backward(signs)
    ctx.sizes = dense.shape[0], dense.shape[1], groups, is_matrix_channels_last(dense)


def _diagonal_sums_gradient(ctx: Any, h: Tensor) -> tuple[Any, ...]:
    return dense_matrix(h, *ctx.saved_tensors, *ctx.sizes), None, None, None


linear.register_autograd(_linear_gradient, setup_context=_save)
linear_eager = without_dispatch(
    linear, lambda x, w, out_features: _run_linear(x, w, out_features, False), _save, _linear_gradient
)
register_kernel(linear_backward, _run_linear_backward)
linear_backward_data.register_autograd(_linear_backward_data_gradient, setup_context=_save)
linear_backward_weight.register_autograd(_linear_backward_weight_gradient, setup_context=_save)
linear_backward.register_autograd(_linear_backward_gradient, setup_context=_save)
dense_matrix.register_autograd(_dense_matrix_gradient, setup_context=_save_dense_matrix)
dense_matrix_eager = without_dispatch(dense_matrix, run_dense_matrix, _save_dense_matrix, _dense_matrix_gradient)
register_kernel(diagonal_sums, run_diagonal_sums)
diagonal_sums.register_autograd(_diagonal_sums_gradient, setup_context=_save_diagonal_sums)


@register_flop_formula(
    [torch.ops.lamina.circulant_materialized_linear, torch.ops.lamina.circulant_materialized_linear_backward_data]
)
def _(a: Any, w: Any, features: int, *_: Any, **__: Any) -> int:
    return kernels.linear_cost(a[0], features, a[1], w[-1], 0).flops


@register_flop_formula(torch.ops.lamina.circulant_materialized_linear_backward_weight)
def _(dy: Any, x: Any, block_size: int, *_: Any, **__: Any) -> int:
    return kernels.linear_cost(dy[0], dy[1], x[1], block_size, 0).flops


@register_flop_formula(torch.ops.lamina.circulant_materialized_linear_backward)
def _(dy: Any, x: Any, w: Any, *_: Any, **__: Any) -> int:
    return 2 * kernels.linear_cost(dy[0], dy[1], x[1], w[-1], 0).flops


@register_flop_formula([torch.ops.lamina.circulant_dense_matrix, torch.ops.lamina.circulant_diagonal_sums])
def _(*_: Any, **__: Any) -> int:
    return 0

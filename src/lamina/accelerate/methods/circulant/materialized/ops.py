"""Expanded circulant products as PyTorch operators, each with its derivative in terms of the others.

The product and its two gradients are the slices of one trilinear form, and the dense matrix and its diagonal sums are
each other's transposes: gradients of any order are again these operators.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.common.tiling import between, power
from lamina.accelerate.methods.circulant.materialized import kernels
from lamina.accelerate.methods.circulant.ops import common, workers
from lamina.accelerate.methods.circulant.tiles import expand_tile
from lamina.accelerate.runtime.eager_op import direct, in_backward
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.launch_cache import taped

_GRAIN, _SUMS, _AT_ONCE = 1024, 32, 64
"""Numbers that a program writes out; sums that it makes, and numbers of each that it reads together."""


@taped
def _run_expand(a: Tensor, w: Tensor, features: int, back: bool) -> Tensor:
    w, (_, q, k) = w.contiguous(), w.shape
    rows, summed = a.shape
    out = a.new_empty(rows, features)
    tile = expand_tile(rows, summed)
    out_features, in_features = (summed, features) if back else (features, summed)
    launch(
        kernels.expand_kernel, -(-rows // tile.rows) * -(-features // tile.columns), a,
        a, w, out, rows, out_features, in_features, q, *a.stride(),
        K=k, BACK=back, BM=tile.rows, BN=tile.columns, BK=tile.depth,
        **common(a.dtype, summed, a, w, out), **workers(tile),
    )  # fmt: skip
    return out


@torch.library.custom_op("lamina::circulant_expand", mutates_args=())
def expand(x: Tensor, w: Tensor, out_features: int) -> Tensor:
    """``x (rows, in_features)`` times circulant tiles of ``w (p, q, k)``, made where they are needed."""
    return _run_expand(x, w, out_features, False)


@torch.library.custom_op("lamina::circulant_expand_data", mutates_args=())
def expand_data(dy: Tensor, w: Tensor, in_features: int) -> Tensor:
    """The input gradient of `expand`."""
    return _run_expand(dy, w, in_features, True)


def _run_grads(dy: Tensor, x: Tensor, w: Tensor | None, dx: Tensor | None, dw: Tensor) -> None:
    """The weight gradient into ``dw``, and with ``w`` the input gradient into ``dx``."""
    (rows, out_features), (p, q, k) = dy.shape, dw.shape
    tile = expand_tile(rows, out_features)
    data_tiles = 0 if dx is None else -(-rows // tile.rows) * -(-x.shape[1] // tile.columns)
    side = max(16, power(k))
    launch(
        kernels.expand_grads_kernel, data_tiles + p * q, dy,
        dy, x, x if w is None else w.contiguous(), x if dx is None else dx, dw,
        data_tiles, rows, out_features, x.shape[1], q, *dy.stride(), *x.stride(),
        K=k, BM=tile.rows, BN=tile.columns, BK=tile.depth,
        SIDE=side, W_BN=min(side, 64), W_BK=between(16, power(rows), 64),
        **common(x.dtype, min(out_features, rows * k), dy, x, dw), **workers(tile),
    )  # fmt: skip


@torch.library.custom_op("lamina::circulant_expand_weight", mutates_args=())
def expand_weight(dy: Tensor, x: Tensor, block_size: int, dtype: torch.dtype) -> Tensor:
    """The weight gradient of `expand`, ``(p, q, k)`` in ``dtype``."""
    dw = _weight_like(dy, x, block_size, dtype)
    _run_grads(dy, x, None, None, dw)
    return dw


@torch.library.custom_op("lamina::circulant_expand_grads", mutates_args=())
def expand_grads(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """`expand_data` and `expand_weight` in one launch."""
    return _run_expand_grads(dy, x, w)


@taped
def _run_expand_grads(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    dx, dw = x.new_empty(x.shape), _weight_like(dy, x, w.shape[-1], w.dtype)
    _run_grads(dy, x, w, dx, dw)
    return dx, dw


def _weight_like(dy: Tensor, x: Tensor, block_size: int, dtype: torch.dtype) -> Tensor:
    return x.new_empty(-(-dy.shape[1] // block_size), -(-x.shape[1] // block_size), block_size, dtype=dtype)


@taped
def run_materialise(
    w: Tensor, signs: Tensor | None, out_features: int, in_features: int, groups: int, channels_last: bool
) -> Tensor:
    """The dense matrix ``(out_features, in_features, taps)`` of ``w (P, taps, q, k)``, of ``groups`` stacked ones.

    ``signs (k)`` multiply the columns of each block.
    """
    w, (rows, taps, q, k) = w.contiguous(), w.shape
    out = _dense_like(w, out_features, in_features, channels_last)
    switches = common(w.dtype, 1, w, out)
    del switches["PRECISION"], switches["UPCAST"]
    launch(
        kernels.materialise_kernel, -(-out.numel() // _GRAIN), w,
        w, w if signs is None else signs, out, out.numel(), out_features // groups, in_features, rows // groups, q,
        TAPS=taps, K=k, BLOCK=_GRAIN, LAST=channels_last, SIGNED=signs is not None, **switches,
    )  # fmt: skip
    return out


def _dense_like(w: Tensor, rows: int, columns: int, channels_last: bool) -> Tensor:
    taps = w.shape[1]
    strides = (taps * columns, 1, columns) if channels_last else (taps * columns, taps, 1)
    return w.new_empty_strided((rows, columns, taps), strides)


@taped
def run_diagonal_sums(dense: Tensor, signs: Tensor | None, block_size: int, groups: int) -> Tensor:
    """The transpose of `materialise`: wrapped diagonals of each block, summed, ``(P, taps, q, k)``."""
    out_features, in_features, taps = dense.shape
    last = is_last(dense)
    dense = dense if last else dense.contiguous()
    p, q = -(-(out_features // groups) // block_size), -(-in_features // block_size)
    out = dense.new_empty(groups * p, taps, q, block_size)
    switches = common(dense.dtype, block_size, dense, out)
    del switches["PRECISION"]
    launch(
        kernels.diagonal_sums_kernel, -(-out.numel() // _SUMS), dense,
        dense, dense if signs is None else signs, out, out.numel(), out_features // groups, in_features, p, q,
        TAPS=taps, K=block_size, BLOCK=_SUMS, AT_ONCE=min(_AT_ONCE, power(block_size)), LAST=last,
        SIGNED=signs is not None, **switches,
    )  # fmt: skip
    return out


def is_last(dense: Tensor) -> bool:
    """Whether numbers of the second axis lie together, and nothing between."""
    return dense.mT.is_contiguous()


@expand.register_fake
def _(x: Tensor, w: Tensor, out_features: int) -> Tensor:
    return x.new_empty(x.shape[0], out_features)


@expand_data.register_fake
def _(dy: Tensor, w: Tensor, in_features: int) -> Tensor:
    return dy.new_empty(dy.shape[0], in_features)


@expand_weight.register_fake
def _(dy: Tensor, x: Tensor, block_size: int, dtype: torch.dtype) -> Tensor:
    return _weight_like(dy, x, block_size, dtype)


@expand_grads.register_fake
def _(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), _weight_like(dy, x, w.shape[-1], w.dtype)


materialise = torch.library.custom_op("lamina::circulant_materialise", run_materialise, mutates_args=())


@materialise.register_fake
def _(
    w: Tensor, signs: Tensor | None, out_features: int, in_features: int, groups: int, channels_last: bool
) -> Tensor:
    return _dense_like(w, out_features, in_features, channels_last)


diagonal_sums = torch.library.custom_op("lamina::circulant_diagonal_sums", run_diagonal_sums, mutates_args=())


@diagonal_sums.register_fake
def _(dense: Tensor, signs: Tensor | None, block_size: int, groups: int) -> Tensor:
    p, q = -(-(dense.shape[0] // groups) // block_size), -(-dense.shape[1] // block_size)
    return dense.new_empty(groups * p, dense.shape[2], q, block_size)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*(each for each in inputs if isinstance(each, Tensor)))


def _expand_gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    x, w = ctx.saved_tensors
    match ctx.needs_input_grad[:2]:
        case [True, True]:
            return *in_backward(expand_grads, _run_expand_grads, g, x, w), None
        case [True, False]:
            return expand_data(g, w, x.shape[1]), None, None
        case _:
            return None, expand_weight(g, x, w.shape[-1], w.dtype), None


def _expand_data_gradient(ctx: Any, h: Tensor) -> tuple[Any, ...]:
    dy, w = ctx.saved_tensors
    for_dy, for_w, _ = ctx.needs_input_grad
    return (
        expand(h, w, dy.shape[1]) if for_dy else None,
        expand_weight(dy, h, w.shape[-1], w.dtype) if for_w else None,
        None,
    )


def _expand_weight_gradient(ctx: Any, h: Tensor) -> tuple[Any, ...]:
    dy, x = ctx.saved_tensors
    for_dy, for_x, *_ = ctx.needs_input_grad
    return (
        expand(x, h, dy.shape[1]) if for_dy else None,
        expand_data(dy, h, x.shape[1]) if for_x else None,
        None,
        None,
    )


def _expand_grads_gradient(ctx: Any, hx: Tensor, hw: Tensor) -> tuple[Any, ...]:
    dy, x, w = ctx.saved_tensors
    for_dy, for_x, for_w = ctx.needs_input_grad
    return (
        expand(hx, w, dy.shape[1]) + expand(x, hw, dy.shape[1]) if for_dy else None,
        *(expand_grads(dy, hx, hw) if for_x or for_w else (None, None)),
    )


def _keep_materialise(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    w, signs, _, _, groups, _ = inputs
    ctx.save_for_backward(signs)
    ctx.blocks = w.shape[-1], groups


def _materialise_gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    return in_backward(diagonal_sums, run_diagonal_sums, g, *ctx.saved_tensors, *ctx.blocks), *(None,) * 5


def _keep_diagonal_sums(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    dense, signs, _, groups = inputs
    ctx.save_for_backward(signs)
    ctx.sizes = dense.shape[0], dense.shape[1], groups, is_last(dense)


def _diagonal_sums_gradient(ctx: Any, h: Tensor) -> tuple[Any, ...]:
    return materialise(h, *ctx.saved_tensors, *ctx.sizes), None, None, None


expand.register_autograd(_expand_gradient, setup_context=_keep)
expand_directly = direct(expand, lambda x, w, width: _run_expand(x, w, width, False), _keep, _expand_gradient)
expand_data.register_autograd(_expand_data_gradient, setup_context=_keep)
expand_weight.register_autograd(_expand_weight_gradient, setup_context=_keep)
expand_grads.register_autograd(_expand_grads_gradient, setup_context=_keep)
materialise.register_autograd(_materialise_gradient, setup_context=_keep_materialise)
materialise_directly = direct(materialise, run_materialise, _keep_materialise, _materialise_gradient)
diagonal_sums.register_autograd(_diagonal_sums_gradient, setup_context=_keep_diagonal_sums)


@register_flop_formula([torch.ops.lamina.circulant_expand, torch.ops.lamina.circulant_expand_data])
def _(a: Any, w: Any, features: int, *_: Any, **__: Any) -> int:
    return kernels.expand_cost(a[0], features, a[1], w[-1], 0).flops


@register_flop_formula(torch.ops.lamina.circulant_expand_weight)
def _(dy: Any, x: Any, block_size: int, *_: Any, **__: Any) -> int:
    return kernels.expand_cost(dy[0], dy[1], x[1], block_size, 0).flops


@register_flop_formula(torch.ops.lamina.circulant_expand_grads)
def _(dy: Any, x: Any, w: Any, *_: Any, **__: Any) -> int:
    return 2 * kernels.expand_cost(dy[0], dy[1], x[1], w[-1], 0).flops


@register_flop_formula([torch.ops.lamina.circulant_materialise, torch.ops.lamina.circulant_diagonal_sums])
def _(*_: Any, **__: Any) -> int:
    return 0

"""Frequency-wise products as PyTorch operators, each with its derivative in terms of the others.

The product, its input gradient and its weight gradient are the three slices of one trilinear form: gradients of any
order are again these operators, and nothing is hidden in a context. Spectra have the layouts that `transform` gives.
First comes what every kernel of these layers is told: float32 products follow
``torch.backends.cuda.matmul.allow_tf32``, as the vendor library's do.
"""

from dataclasses import replace
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.common.split_fp16.ops import steps
from lamina.accelerate.methods.circulant import kernels
from lamina.accelerate.methods.circulant.basis import parts
from lamina.accelerate.methods.circulant.halo import compiled as halo
from lamina.accelerate.methods.circulant.tiles import (
    AT_ONCE,
    BUSY,
    BUSY_TOGETHER,
    ProductTile,
    TransformTile,
    linear_tile,
    product_tile,
    row_splits,
    weight_tile,
    weight_tiles,
)
from lamina.accelerate.methods.circulant.window import Window
from lamina.accelerate.runtime import triton_ops as shared
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.target_info import shared_memory
from lamina.accelerate.runtime.triton_ops import INTERPRETED, index_type, precision
from lamina.accelerate.runtime.triton_utils import reciprocal

DTYPES = (*shared.DTYPES, torch.float64)

SHORT = 16
"""Products in a sum that is made by fp32 multiply-adds where fp32 is asked for."""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # compiled graphs are made again on a change
def tf32() -> bool:
    """Whether float32 is multiplied as TF32."""
    return precision() == "tf32"


def exact(spectrum: Tensor) -> bool:
    """Whether products of spectra in one part have all of float32's accuracy."""
    return spectrum.dtype == torch.float32 and not tf32()


def check_device(tensor: Tensor) -> None:
    """Refuse what no kernel can read.

    Raises:
        MissingError: the tensor is not on a GPU, and kernels are not interpreted.
        UnsupportedError: its type is not one of `DTYPES`.
    """
    shared.check_device(tensor, "circulant", 'use impl="reference"', DTYPES)


def exactness(dtype: torch.dtype, summed: int) -> str:
    """How sums of so many products are made: the rounding of three TF32 products does not average out in short ones."""
    return "ieee" if dtype == torch.float64 or (summed <= SHORT and not tf32()) else precision()


def common(dtype: torch.dtype, summed: int, *tensors: Tensor) -> dict[str, Any]:
    """Switches for sums of ``summed`` products of elements of ``dtype``."""
    for tensor in tensors:
        check_device(tensor)
    return {
        "ACC": tl.float64 if dtype == torch.float64 else tl.float32,
        "PRECISION": exactness(dtype, summed),
        "UPCAST": INTERPRETED and dtype != torch.float64,
        "INDEX": index_type(*tensors),
        **shared.early(*tensors),
    }


def workers(tile: TransformTile | ProductTile) -> dict[str, int]:
    """How many warps share a tile, and how many loads are in flight."""
    return {"num_warps": tile.warps, "num_stages": tile.stages}


def empty_rows(
    like: Tensor, shape: tuple[int, int, int], channels_last: bool, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Memory for rows ``(N, C, L)``."""
    _, channels, length = shape
    if channels_last:  # no view: what an operator returns as one may not be changed in place
        return like.new_empty_strided(shape, (channels * length, 1, channels), dtype=dtype)
    return like.new_empty(shape, dtype=dtype)


def is_channels_last(x: Tensor) -> bool:
    """Whether a pixel's channels lie together."""
    return x.shape[2] > 1 and x.stride(1) == 1


def _sizes(window: Window) -> tuple[int, ...]:
    return window.height, window.width, window.out_height, window.out_width


def run_mix(a: Tensor, ws: Tensor, out: Tensor, window: Window, back: bool, down: float = 1.0) -> Tensor:
    """Fill ``out`` with the product of spectra times ``down``, or ``back`` with the input gradient's."""
    a, ws = a.contiguous(), ws.contiguous()
    if not halo.product(a, ws, out, window, back, down):
        programs, arguments, switches = mix_launch(a, ws, out, window, back, down)
        launch(kernels.mix_kernel, programs, a, a, *arguments, **switches)
    return out


def mix_launch(
    a: Tensor, ws: Tensor, out: Tensor, window: Window, back: bool, down: float = 1.0
) -> tuple[int, tuple[Any, ...], dict[str, Any]]:
    """Programs, arguments but for the first, and switches of the kernel that makes `run_mix`'s product.

    Rows of ``a`` lie together, those of one slot further from the next one's than there are, if need be.
    """
    slots, weight_rows, _, q = ws.shape[-4:]
    p = weight_rows // (window.taps * window.groups)
    kept, summed = (q, p) if back else (p, q)
    depth = 2 * window.taps * summed
    rows = out.shape[-3]
    tile = _data_tile(rows, kept, summed, slots, window, a)
    tiles = -(-rows // tile.rows) * -(-kept // tile.columns)
    sizes = _sizes(window)
    apart = a.stride(-4) // (2 * a.shape[-1]) if slots > 1 else a.shape[-3]
    arguments = ws, out, apart, rows, tiles, slots, *sizes, *map(reciprocal, sizes[:2] if back else sizes[2:])
    switches = {
        "P": p, "Q": q, **steps(window), "POINTWISE": window.pointwise, "BACK": back,
        "BM": tile.rows, "BN": tile.columns, "BK": tile.depth, "STEP": tile.step, "DOWN": down, "PARTS": parts(a),
        **common(a.dtype, depth, a, ws, out), **workers(tile),
    }  # fmt: skip
    return slots * window.groups * tiles, arguments, switches


def _data_tile(
    rows: int, kept: int, summed: int, slots: int, window: Window, a: Tensor, enough: int = BUSY
) -> ProductTile:
    """Of a product of ``rows`` or their gradients."""
    if window.taps > 1:
        return product_tile(rows, kept, 2 * summed, window.taps, a.itemsize, exact(a))
    sizes = rows, kept, 2 * summed, slots * window.groups
    return linear_tile(*sizes, a.itemsize, parts(a), enough, shared_memory(a.device), exact(a))


def run_grads(
    dys: Tensor, xs: Tensor, ws: Tensor | None, dxs: Tensor | None, window: Window,
    down: float | None = None,
) -> Tensor:  # fmt: skip
    """Shares of the weight gradient to be added, and with ``ws`` and ``dxs`` the input gradient into the latter.

    With what products are to be multiplied by, ``down``, shares are float32.
    """
    dys, xs = dys.contiguous(), xs.contiguous()
    slots, rows_out, _, outputs = dys.shape[-4:]
    rows_in = xs.shape[-3]
    p, q = outputs // window.groups, xs.shape[-1] // window.groups
    shares = halo.weight_gradient(dys, xs, window)
    if shares is not None:
        if ws is not None and dxs is not None:
            run_mix(dys, ws, dxs, window, back=True, down=down or 1.0)
        return shares
    tile = weight_tile(p, q, window.taps, rows_out, dys.itemsize, exact(dys))
    share_tiles = -(-p // tile.rows) * weight_tiles(tile.columns, q, window.taps)
    splits = row_splits(slots * window.groups * share_tiles, rows_out, tile.depth)
    others = slots * window.groups * splits * share_tiles
    data = _data_tile(rows_in, q, p, slots, window, dys, BUSY_TOGETHER - others)
    data_tiles = 0 if dxs is None else -(-rows_in // data.rows) * -(-q // data.columns)
    switches = common(dys.dtype, 2 * window.taps * p, dys, xs) | {"W_PRECISION": exactness(dys.dtype, rows_out)}
    wide = torch.float64 if dys.dtype == torch.float64 else torch.float32
    shares = xs.new_empty(splits, slots, outputs * window.taps, 2, q, dtype=wide if splits > 1 or down else dys.dtype)
    tiles, sizes = data_tiles + splits * share_tiles, _sizes(window)
    programs, worker = slots * window.groups * tiles, tile if dxs is None else data
    if parts(dys) == 2 and programs > AT_ONCE:  # more of them fit
        worker = replace(worker, stages=min(worker.stages, 2))
    launch(
        kernels.mix_grads_kernel, programs, dys,
        dys, xs, xs if ws is None else ws.contiguous(), xs if dxs is None else dxs, shares,
        rows_in, rows_out, data_tiles, tiles, slots, *sizes, *map(reciprocal, sizes), splits,
        P=p, Q=q, **steps(window), POINTWISE=window.pointwise,
        BM=data.rows, BN=data.columns, BK=data.depth, STEP=data.step, DOWN=down or 1.0, PARTS=parts(dys),
        W_BM=tile.rows, W_BN=tile.columns, W_BK=tile.depth, W_STEP=tile.step,
        **switches, **workers(worker),
    )  # fmt: skip
    return shares


def added(shares: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of a weight gradient's shares, in order."""
    return (shares.sum(0) if len(shares) > 1 else shares[0]).to(dtype)


def output_like(xs: Tensor, ws: Tensor, window: Window) -> Tensor:
    """Memory for the output's spectrum."""
    shape = xs.shape[-4], window.rows_out, 2, ws.shape[-3] // window.taps
    return xs.new_empty(shape, dtype=_summed_type(xs))


def input_like(dys: Tensor, ws: Tensor, window: Window) -> Tensor:
    """Memory for the input gradient's spectrum."""
    shape = dys.shape[-4], window.rows_in, 2, ws.shape[-1] * window.groups
    return dys.new_empty(shape, dtype=_summed_type(dys))


def _summed_type(spectrum: Tensor) -> torch.dtype:
    return torch.float32 if parts(spectrum) == 2 else spectrum.dtype


def _weight_like(dys: Tensor, xs: Tensor, window: Window) -> Tensor:
    return xs.new_empty(xs.shape[0], dys.shape[-1] * window.taps, 2, xs.shape[-1] // window.groups)


@torch.library.custom_op("lamina::circulant_mix", mutates_args=())
def mix(xs: Tensor, ws: Tensor, window: list[int]) -> Tensor:
    """The output's spectrum ``[F, rows_out, 2, G*p]``: rows times weights, frequency by frequency."""
    sizes = Window.unpack(window)
    return run_mix(xs, ws, output_like(xs, ws, sizes), sizes, back=False)


@torch.library.custom_op("lamina::circulant_mix_data", mutates_args=())
def mix_data(dys: Tensor, ws: Tensor, window: list[int]) -> Tensor:
    """The input gradient's spectrum ``[F, rows_in, 2, G*q]``."""
    sizes = Window.unpack(window)
    return run_mix(dys, ws, input_like(dys, ws, sizes), sizes, back=True)


@torch.library.custom_op("lamina::circulant_mix_weight", mutates_args=())
def mix_weight(dys: Tensor, xs: Tensor, window: list[int]) -> Tensor:
    """The weight gradient's spectrum ``[F, G*p*taps, 2, q]``."""
    return added(run_grads(dys, xs, None, None, Window.unpack(window)), dys.dtype)


@torch.library.custom_op("lamina::circulant_mix_grads", mutates_args=())
def mix_grads(dys: Tensor, xs: Tensor, ws: Tensor, window: list[int]) -> tuple[Tensor, Tensor]:
    """`mix_data` and `mix_weight` in one launch."""
    sizes = Window.unpack(window)
    dxs = input_like(dys, ws, sizes)
    return dxs, added(run_grads(dys, xs, ws, dxs, sizes), dys.dtype)


@mix.register_fake
def _(xs: Tensor, ws: Tensor, window: list[int]) -> Tensor:
    return output_like(xs, ws, Window.unpack(window))


@mix_data.register_fake
def _(dys: Tensor, ws: Tensor, window: list[int]) -> Tensor:
    return input_like(dys, ws, Window.unpack(window))


@mix_weight.register_fake
def _(dys: Tensor, xs: Tensor, window: list[int]) -> Tensor:
    return _weight_like(dys, xs, Window.unpack(window))


@mix_grads.register_fake
def _(dys: Tensor, xs: Tensor, ws: Tensor, window: list[int]) -> tuple[Tensor, Tensor]:
    sizes = Window.unpack(window)
    return input_like(dys, ws, sizes), _weight_like(dys, xs, sizes)


def _keep_mix(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.window = inputs
    ctx.save_for_backward(*tensors)


def _mix_gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    xs, ws = ctx.saved_tensors
    match ctx.needs_input_grad[:2]:
        case [True, True]:
            return *mix_grads(g, xs, ws, ctx.window), None
        case [True, False]:
            return mix_data(g, ws, ctx.window), None, None
        case _:
            return None, mix_weight(g, xs, ctx.window), None


def _mix_data_gradient(ctx: Any, h: Tensor) -> tuple[Any, ...]:
    dys, ws = ctx.saved_tensors
    for_dys, for_ws, _ = ctx.needs_input_grad
    return (
        mix(h, ws, ctx.window) if for_dys else None,
        mix_weight(dys, h, ctx.window) if for_ws else None,
        None,
    )


def _mix_weight_gradient(ctx: Any, h: Tensor) -> tuple[Any, ...]:
    dys, xs = ctx.saved_tensors
    for_dys, for_xs, _ = ctx.needs_input_grad
    return (
        mix(xs, h, ctx.window) if for_dys else None,
        mix_data(dys, h, ctx.window) if for_xs else None,
        None,
    )


def _mix_grads_gradient(ctx: Any, hx: Tensor, hw: Tensor) -> tuple[Any, ...]:
    dys, xs, ws = ctx.saved_tensors
    for_dys, for_xs, for_ws, _ = ctx.needs_input_grad
    return (
        mix(hx, ws, ctx.window) + mix(xs, hw, ctx.window) if for_dys else None,
        *(mix_grads(dys, hx, hw, ctx.window) if for_xs or for_ws else (None, None)),
        None,
    )


mix.register_autograd(_mix_gradient, setup_context=_keep_mix)
mix_data.register_autograd(_mix_data_gradient, setup_context=_keep_mix)
mix_weight.register_autograd(_mix_weight_gradient, setup_context=_keep_mix)
mix_grads.register_autograd(_mix_grads_gradient, setup_context=_keep_mix)


def mix_flops(window: list[int], p: int, q: int, slots: int) -> int:
    """Operations of a product of spectra."""
    sizes = Window.unpack(window)
    return kernels.mix_cost(sizes, p, q, slots, 0).flops


@register_flop_formula([torch.ops.lamina.circulant_mix, torch.ops.lamina.circulant_mix_data])
def _(a: Any, ws: Any, window: list[int], *_: Any, **__: Any) -> int:
    sizes = Window.unpack(window)
    return mix_flops(window, ws[1] // (sizes.taps * sizes.groups), ws[-1], a[0])


@register_flop_formula(torch.ops.lamina.circulant_mix_weight)
def _(dys: Any, xs: Any, window: list[int], *_: Any, **__: Any) -> int:
    groups = Window.unpack(window).groups
    return mix_flops(window, dys[-1] // groups, xs[-1] // groups, dys[0])


@register_flop_formula(torch.ops.lamina.circulant_mix_grads)
def _(dys: Any, xs: Any, ws: Any, window: list[int], *_: Any, **__: Any) -> int:
    groups = Window.unpack(window).groups
    return 2 * mix_flops(window, dys[-1] // groups, xs[-1] // groups, dys[0])

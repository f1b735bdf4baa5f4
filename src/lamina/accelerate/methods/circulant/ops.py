"""The spectral matmul, one matmul per frequency, as PyTorch operators whose derivatives are these operators.

The matmul, its input gradient and its weight gradient are the three partial derivatives of one trilinear form, so
gradients of any order are again these operators. Spectra have the layouts of `spectral`. The first functions give the
launch parameters that all kernels of these layers share. float32 matmuls follow
``torch.backends.cuda.matmul.allow_tf32``, as those of the vendor library do.
"""

from dataclasses import replace
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.common.channel_sums.ops import channel_sums
from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.common.graph_constants import graph_constant
from lamina.accelerate.common.split_fp16.ops import window_constexprs
from lamina.accelerate.methods.circulant import kernels
from lamina.accelerate.methods.circulant.basis import num_terms
from lamina.accelerate.methods.circulant.halo import cuda as halo
from lamina.accelerate.methods.circulant.tiles import (
    CONCURRENT_PROGRAMS,
    MIN_BACKWARD_PROGRAMS,
    MIN_MATMUL_PROGRAMS,
    MatmulTile,
    TransformTile,
    backward_weight_tile,
    conv_tile,
    linear_tile,
    num_weight_tiles,
    split_k_for,
)
from lamina.accelerate.runtime import triton_ops as shared
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.target_info import shared_memory
from lamina.accelerate.runtime.triton_ops import INTERPRETED, index_type, precision
from lamina.accelerate.runtime.triton_utils import fast_divisor

DTYPES = (*shared.DTYPES, torch.float64)

SHORT_SUM = 16
"""Products up to which a sum in fp32 uses fp32 multiply-adds instead of tensor cores."""


@graph_constant  # compiled graphs recompile when it changes
def tf32() -> bool:
    """Whether float32 is multiplied as TF32."""
    return precision() == "tf32"


def exact(spectrum: Tensor) -> bool:
    """Whether matmuls of a one-term spectrum have full float32 accuracy."""
    return spectrum.dtype == torch.float32 and not tf32()


def check_device(tensor: Tensor) -> None:
    """Check that kernels can read a tensor.

    Raises:
        MissingError: the tensor is not on a GPU, and kernels do not run in Triton's interpreter.
        UnsupportedError: its dtype is not one of `DTYPES`.
    """
    shared.check_kernel_operand(tensor, "circulant", 'use impl="reference"', DTYPES)


def dot_precision(dtype: torch.dtype, summed: int) -> str:
    """The ``input_precision`` of sums of ``summed`` products.

    The rounding errors of 3xTF32 do not average out in short sums, which use IEEE fp32.
    """
    return "ieee" if dtype == torch.float64 or (summed <= SHORT_SUM and not tf32()) else precision()


def common_constexprs(dtype: torch.dtype, summed: int, *tensors: Tensor) -> dict[str, Any]:
    """Constexprs that the kernels share, for sums of ``summed`` products in ``dtype``."""
    for tensor in tensors:
        check_device(tensor)
    return {
        "ACC": tl.float64 if dtype == torch.float64 else tl.float32,
        "PRECISION": dot_precision(dtype, summed),
        "UPCAST": INTERPRETED and dtype != torch.float64,
        "INDEX": index_type(*tensors),
        **shared.pdl_options(*tensors),
    }


def launch_options(tile: TransformTile | MatmulTile) -> dict[str, int]:
    """The launch options of a tile."""
    return {"num_warps": tile.num_warps, "num_stages": tile.num_stages}


def empty_rows(
    like: Tensor, shape: tuple[int, int, int], channels_last: bool, dtype: torch.dtype = torch.float32
) -> Tensor:
    """An uninitialized tensor ``(N, C, L)``, contiguous or channels-last."""
    _, channels, length = shape
    if channels_last:  # not a view: autograd forbids in-place changes of views that an operator returns
        return like.new_empty_strided(shape, (channels * length, 1, channels), dtype=dtype)
    return like.new_empty(shape, dtype=dtype)


def is_channels_last(x: Tensor) -> bool:
    """Whether the channels of a pixel are contiguous."""
    return x.shape[2] > 1 and x.stride(1) == 1


def _sizes(window: Conv2dProblem) -> tuple[int, ...]:
    return window.height, window.width, window.out_height, window.out_width


def run_spectral_matmul(
    a: Tensor, ws: Tensor, out: Tensor, window: Conv2dProblem, backward_data: bool, output_scale: float = 1.0
) -> Tensor:
    """Write ``output_scale`` times the spectral matmul, or with ``backward_data`` its input gradient, to ``out``."""
    a, ws = a.contiguous(), ws.contiguous()
    if not halo.spectral_matmul(a, ws, out, window, backward_data, output_scale):
        programs, arguments, constexprs = spectral_matmul_launch(a, ws, out, window, backward_data, output_scale)
        launch(kernels.spectral_matmul_kernel, programs, a, a, *arguments, **constexprs)
    return out


def spectral_matmul_launch(
    a: Tensor, ws: Tensor, out: Tensor, window: Conv2dProblem, backward_data: bool, output_scale: float = 1.0
) -> tuple[int, tuple[Any, ...], dict[str, Any]]:
    """Grid size, arguments after the first, and constexprs of the kernel of `run_spectral_matmul`.

    The rows of ``a`` are contiguous within a slot; the stride between slots may be larger than the rows of a slot.
    """
    slots, weight_rows, _, q = ws.shape[-4:]
    p = weight_rows // (window.taps * window.groups)
    kept, summed = (q, p) if backward_data else (p, q)
    k = 2 * window.taps * summed
    rows = out.shape[-3]
    tile = _data_tile(rows, kept, summed, slots, window, a)
    tiles = -(-rows // tile.block_m) * -(-kept // tile.block_n)
    sizes = _sizes(window)
    slot_rows = a.stride(-4) // (2 * a.shape[-1]) if slots > 1 else a.shape[-3]
    divisors = map(fast_divisor, sizes[:2] if backward_data else sizes[2:])
    arguments = ws, out, slot_rows, rows, tiles, slots, *sizes, *divisors
    constexprs = {
        "P": p, "Q": q, **window_constexprs(window), "POINTWISE": window.pointwise, "BACKWARD_DATA": backward_data,
        "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "TAP_WIDTH": tile.tap_width,
        "OUTPUT_SCALE": output_scale, "TERMS": num_terms(a),
        **common_constexprs(a.dtype, k, a, ws, out), **launch_options(tile),
    }  # fmt: skip
    return slots * window.groups * tiles, arguments, constexprs


def _data_tile(
    rows: int,
    kept: int,
    summed: int,
    slots: int,
    window: Conv2dProblem,
    a: Tensor,
    min_programs: int = MIN_MATMUL_PROGRAMS,
) -> MatmulTile:
    """The tile of the forward matmul or of the input gradient."""
    if window.taps > 1:
        return conv_tile(rows, kept, 2 * summed, window.taps, a.itemsize, exact(a))
    sizes = rows, kept, 2 * summed, slots * window.groups
    return linear_tile(*sizes, a.itemsize, num_terms(a), min_programs, shared_memory(a.device), exact(a))


def run_spectral_matmul_backward(
    dys: Tensor, xs: Tensor, ws: Tensor | None, dxs: Tensor | None, window: Conv2dProblem,
    output_scale: float | None = None,
) -> Tensor:  # fmt: skip
    """Split-K partial sums of the weight gradient; with ``ws`` and ``dxs`` also the input gradient, to ``dxs``.

    With an ``output_scale``, which multiplies the input gradient, the partial sums are float32.
    """
    dys, xs = dys.contiguous(), xs.contiguous()
    slots, rows_out, _, outputs = dys.shape[-4:]
    rows_in = xs.shape[-3]
    p, q = outputs // window.groups, xs.shape[-1] // window.groups
    partials = halo.weight_gradient(dys, xs, window)
    if partials is not None:
        if ws is not None and dxs is not None:
            run_spectral_matmul(dys, ws, dxs, window, backward_data=True, output_scale=output_scale or 1.0)
        return partials
    tile = backward_weight_tile(p, q, window.taps, rows_out, dys.itemsize, exact(dys))
    weight_tiles = -(-p // tile.block_m) * num_weight_tiles(tile.block_n, q, window.taps)
    split_k = split_k_for(slots * window.groups * weight_tiles, rows_out, tile.block_k)
    weight_programs = slots * window.groups * split_k * weight_tiles
    data = _data_tile(rows_in, q, p, slots, window, dys, MIN_BACKWARD_PROGRAMS - weight_programs)
    data_tiles = 0 if dxs is None else -(-rows_in // data.block_m) * -(-q // data.block_n)
    constexprs = common_constexprs(dys.dtype, 2 * window.taps * p, dys, xs)
    acc_dtype = torch.float64 if dys.dtype == torch.float64 else torch.float32
    dtype = acc_dtype if split_k > 1 or output_scale else dys.dtype
    partials = xs.new_empty(split_k, slots, outputs * window.taps, 2, q, dtype=dtype)
    tiles, sizes = data_tiles + split_k * weight_tiles, _sizes(window)
    programs, options = slots * window.groups * tiles, tile if dxs is None else data
    if num_terms(dys) == 2 and programs > CONCURRENT_PROGRAMS:  # with fewer stages, more programs are resident
        options = replace(options, num_stages=min(options.num_stages, 2))
    launch(
        kernels.spectral_matmul_backward_kernel, programs, dys,
        dys, xs, xs if ws is None else ws.contiguous(), xs if dxs is None else dxs, partials,
        rows_in, rows_out, data_tiles, tiles, slots, *sizes, *map(fast_divisor, sizes), split_k,
        P=p, Q=q, **window_constexprs(window), POINTWISE=window.pointwise,
        BLOCK_M=data.block_m, BLOCK_N=data.block_n, BLOCK_K=data.block_k, TAP_WIDTH=data.tap_width,
        OUTPUT_SCALE=output_scale or 1.0, TERMS=num_terms(dys),
        W_BLOCK_M=tile.block_m, W_BLOCK_N=tile.block_n, W_BLOCK_K=tile.block_k, W_TAP_WIDTH=tile.tap_width,
        W_PRECISION=dot_precision(dys.dtype, rows_out), **constexprs, **launch_options(options),
    )  # fmt: skip
    return partials


def reduce_split_k(partials: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of the split-K partials of a weight gradient, in a fixed order."""
    if len(partials) == 1:
        return partials[0].to(dtype)
    return channel_sums(partials.flatten(1)[..., None], dtype).view(partials.shape[1:])


def output_spectrum_like(xs: Tensor, ws: Tensor, window: Conv2dProblem) -> Tensor:
    """An uninitialized spectrum of the output."""
    shape = xs.shape[-4], window.rows_out, 2, ws.shape[-3] // window.taps
    return xs.new_empty(shape, dtype=_output_dtype(xs))


def input_spectrum_like(dys: Tensor, ws: Tensor, window: Conv2dProblem) -> Tensor:
    """An uninitialized spectrum of the input gradient."""
    shape = dys.shape[-4], window.rows_in, 2, ws.shape[-1] * window.groups
    return dys.new_empty(shape, dtype=_output_dtype(dys))


def _output_dtype(spectrum: Tensor) -> torch.dtype:
    return torch.float32 if num_terms(spectrum) == 2 else spectrum.dtype


def _weight_like(dys: Tensor, xs: Tensor, window: Conv2dProblem) -> Tensor:
    return xs.new_empty(xs.shape[0], dys.shape[-1] * window.taps, 2, xs.shape[-1] // window.groups)


@torch.library.custom_op("lamina::circulant_spectral_matmul", mutates_args=())
def spectral_matmul(xs: Tensor, ws: Tensor, window: list[int]) -> Tensor:
    """The spectrum of the output ``[F, rows_out, 2, G*p]``: rows times weights, for each frequency."""
    sizes = Conv2dProblem.unpack(window)
    return run_spectral_matmul(xs, ws, output_spectrum_like(xs, ws, sizes), sizes, backward_data=False)


@torch.library.custom_op("lamina::circulant_spectral_matmul_backward_data", mutates_args=())
def spectral_matmul_backward_data(dys: Tensor, ws: Tensor, window: list[int]) -> Tensor:
    """The spectrum of the input gradient ``[F, rows_in, 2, G*q]``."""
    sizes = Conv2dProblem.unpack(window)
    return run_spectral_matmul(dys, ws, input_spectrum_like(dys, ws, sizes), sizes, backward_data=True)


@torch.library.custom_op("lamina::circulant_spectral_matmul_backward_weight", mutates_args=())
def spectral_matmul_backward_weight(dys: Tensor, xs: Tensor, window: list[int]) -> Tensor:
    """The spectrum of the weight gradient ``[F, G*p*taps, 2, q]``."""
    return reduce_split_k(run_spectral_matmul_backward(dys, xs, None, None, Conv2dProblem.unpack(window)), dys.dtype)


@torch.library.custom_op("lamina::circulant_spectral_matmul_backward", mutates_args=())
def spectral_matmul_backward(dys: Tensor, xs: Tensor, ws: Tensor, window: list[int]) -> tuple[Tensor, Tensor]:
    """`spectral_matmul_backward_data` and `spectral_matmul_backward_weight` in one launch."""
    sizes = Conv2dProblem.unpack(window)
    dxs = input_spectrum_like(dys, ws, sizes)
    return dxs, reduce_split_k(run_spectral_matmul_backward(dys, xs, ws, dxs, sizes), dys.dtype)


@spectral_matmul.register_fake
def _(xs: Tensor, ws: Tensor, window: list[int]) -> Tensor:
    return output_spectrum_like(xs, ws, Conv2dProblem.unpack(window))


@spectral_matmul_backward_data.register_fake
def _(dys: Tensor, ws: Tensor, window: list[int]) -> Tensor:
    return input_spectrum_like(dys, ws, Conv2dProblem.unpack(window))


@spectral_matmul_backward_weight.register_fake
def _(dys: Tensor, xs: Tensor, window: list[int]) -> Tensor:
    return _weight_like(dys, xs, Conv2dProblem.unpack(window))


@spectral_matmul_backward.register_fake
def _(dys: Tensor, xs: Tensor, ws: Tensor, window: list[int]) -> tuple[Tensor, Tensor]:
    sizes = Conv2dProblem.unpack(window)
    return input_spectrum_like(dys, ws, sizes), _weight_like(dys, xs, sizes)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.window = inputs
    ctx.save_for_backward(*tensors)


def _spectral_matmul_gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    xs, ws = ctx.saved_tensors
    match ctx.needs_input_grad[:2]:
        case [True, True]:
            return *spectral_matmul_backward(g, xs, ws, ctx.window), None
        case [True, False]:
            return spectral_matmul_backward_data(g, ws, ctx.window), None, None
        case _:
            return None, spectral_matmul_backward_weight(g, xs, ctx.window), None


def _backward_data_gradient(ctx: Any, h: Tensor) -> tuple[Any, ...]:
    dys, ws = ctx.saved_tensors
    for_dys, for_ws, _ = ctx.needs_input_grad
    return (
        spectral_matmul(h, ws, ctx.window) if for_dys else None,
        spectral_matmul_backward_weight(dys, h, ctx.window) if for_ws else None,
        None,
    )


def _backward_weight_gradient(ctx: Any, h: Tensor) -> tuple[Any, ...]:
    dys, xs = ctx.saved_tensors
    for_dys, for_xs, _ = ctx.needs_input_grad
    return (
        spectral_matmul(xs, h, ctx.window) if for_dys else None,
        spectral_matmul_backward_data(dys, h, ctx.window) if for_xs else None,
        None,
    )


def _backward_gradient(ctx: Any, hx: Tensor, hw: Tensor) -> tuple[Any, ...]:
    dys, xs, ws = ctx.saved_tensors
    for_dys, for_xs, for_ws, _ = ctx.needs_input_grad
    return (
        spectral_matmul(hx, ws, ctx.window) + spectral_matmul(xs, hw, ctx.window) if for_dys else None,
        *(spectral_matmul_backward(dys, hx, hw, ctx.window) if for_xs or for_ws else (None, None)),
        None,
    )


spectral_matmul.register_autograd(_spectral_matmul_gradient, setup_context=_save)
spectral_matmul_backward_data.register_autograd(_backward_data_gradient, setup_context=_save)
spectral_matmul_backward_weight.register_autograd(_backward_weight_gradient, setup_context=_save)
spectral_matmul_backward.register_autograd(_backward_gradient, setup_context=_save)


def spectral_matmul_flops(window: list[int], p: int, q: int, slots: int) -> int:
    """FLOPs of a spectral matmul."""
    sizes = Conv2dProblem.unpack(window)
    return kernels.spectral_matmul_cost(sizes, p, q, slots, 0).flops


@register_flop_formula(
    [torch.ops.lamina.circulant_spectral_matmul, torch.ops.lamina.circulant_spectral_matmul_backward_data]
)
def _(a: Any, ws: Any, window: list[int], *_: Any, **__: Any) -> int:
    sizes = Conv2dProblem.unpack(window)
    return spectral_matmul_flops(window, ws[1] // (sizes.taps * sizes.groups), ws[-1], a[0])


@register_flop_formula(torch.ops.lamina.circulant_spectral_matmul_backward_weight)
def _(dys: Any, xs: Any, window: list[int], *_: Any, **__: Any) -> int:
    groups = Conv2dProblem.unpack(window).groups
    return spectral_matmul_flops(window, dys[-1] // groups, xs[-1] // groups, dys[0])


@register_flop_formula(torch.ops.lamina.circulant_spectral_matmul_backward)
def _(dys: Any, xs: Any, ws: Any, window: list[int], *_: Any, **__: Any) -> int:
    groups = Conv2dProblem.unpack(window).groups
    return 2 * spectral_matmul_flops(window, dys[-1] // groups, xs[-1] // groups, dys[0])

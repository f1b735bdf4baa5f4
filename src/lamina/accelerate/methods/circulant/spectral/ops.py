"""The block-wise DFT and its inverse as PyTorch operators.

Each is the transpose of the other, so gradients of any order are again these operators. Rows are ``x (N, C, L)`` of any
strides, weights the view ``(P, q*k, taps)`` of a parameter ``(P, *kernel, q, k)``. ``signs (k)``, if given, multiply
the elements of each block of rows before the transform. Spectra have the layouts of `kernels`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.common.channel_sums.ops import channel_sums
from lamina.accelerate.methods.circulant.basis import basis, growth, num_terms, slot_count
from lamina.accelerate.methods.circulant.ops import (
    SHORT_SUM,
    common_constexprs,
    empty_rows,
    is_channels_last,
    launch_options,
    tf32,
)
from lamina.accelerate.methods.circulant.spectral import kernels
from lamina.accelerate.methods.circulant.tiles import transform_tile
from lamina.accelerate.runtime.constants import constant
from lamina.accelerate.runtime.eager_op import call_in_backward, without_dispatch
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.launch_cache import cached_launches
from lamina.accelerate.runtime.replay import register_kernel

TARGET_EXPONENT = int(kernels.TARGET_EXPONENT.value)

RETRY_PROGRAMS = 512
"""Programs of a retry, which is mostly not needed: few, so that an empty one is short."""


@constant
def _device_basis(
    block_size: int, eigenvalues: bool, dtype: torch.dtype, device: torch.device, rounded: bool
) -> Tensor:
    """The DFT basis on a device, computed once.

    Kernels may read it before the preceding kernel has finished (programmatic dependent launch). It is therefore
    computed on the host and copied synchronously.
    """
    if dtype == torch.float16:  # hi and lo
        exact = basis(block_size, eigenvalues=eigenvalues, dtype=torch.float64) * kernels.BASIS_SCALE.value
        return torch.stack([exact.half(), (exact - exact.half()).half()]).to(device)
    matrix = basis(block_size, eigenvalues=eigenvalues, dtype=dtype)
    if rounded:  # to TF32, since tensor cores truncate
        matrix = ((matrix.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
    return matrix.contiguous().to(device)


def basis_for(spectrum: Tensor, block_size: int, eigenvalues: bool, scaled: bool = False) -> Tensor:
    """The basis of the transform to and from ``spectrum``: split fp16 where that has float32 accuracy."""
    low_precision = spectrum.dtype not in (torch.float64, torch.float32)
    split = scaled or (spectrum.dtype == torch.float32 and block_size > SHORT_SUM)
    dtype = torch.float16 if split else torch.float32 if low_precision else spectrum.dtype
    return _device_basis(block_size, eigenvalues, dtype, spectrum.device, low_precision)


def transform_constexprs(spectral: torch.dtype, block_size: int, *tensors: Tensor) -> dict[str, Any]:
    """Constexprs of a transform: TF32 suffices for 16-bit spectra; wider ones use full precision, also in TF32 mode."""
    low_precision = spectral not in (torch.float32, torch.float64)
    return common_constexprs(spectral, block_size, *tensors) | {"PRECISION": "tf32" if low_precision else "ieee"}


def _launch_side(
    x: Tensor, spectrum: Tensor, block_size: int, groups: int, eigenvalues: bool, name: str, inverse: bool = False,
    scaled: bool = False,
) -> Any:  # fmt: skip
    """The launch parameters of one tensor of a transform: basis; sizes and strides; programs; constexprs."""
    batch, channels, length = x.shape
    rows, row_blocks = batch * length, spectrum.shape[-1]
    matrix = basis_for(spectrum, block_size, eigenvalues, scaled)
    features, itemsizes = length == 1, (x.itemsize, spectrum.itemsize)
    exact = matrix.dtype == torch.float16 and not tf32()
    contiguous = features or x.stride(1) == 1
    tile = transform_tile(block_size, rows, row_blocks, contiguous, inverse, scaled, features, itemsizes, exact)
    sizes = (rows, length, channels // groups, *x.stride())
    programs = -(-rows // tile.rows) * -(-row_blocks // tile.blocks) * -(-_packed_size(block_size) // tile.block_n)
    constexprs = {
        f"{name}_BLOCKS": row_blocks // groups, f"{name}_GROUPS": groups,
        f"{name}_TILE_ROWS": tile.rows, f"{name}_TILE_BLOCKS": tile.blocks,
        "BLOCK_K": tile.block_k, "BLOCK_N": tile.block_n,
    }  # fmt: skip
    if not inverse:
        constexprs[f"{name}_FULL_ROWS"] = tile.full_rows
    return matrix, sizes, programs, constexprs | launch_options(tile)


def _packed_size(block_size: int) -> int:
    return 2 * slot_count(block_size)


@dataclass(frozen=True)
class Scales:
    """Per-tensor scales of rows and weights: ``partial_amax`` of both, their counts, and outputs for inverse scales.

    With ``overflow``, the amax of the rows is sampled, and the transform sets this flag if an element exceeds the
    scale. With ``retry``, the rows are transformed again if the flag is set.
    """

    partial_amax: Tensor
    x_partials: int
    w_partials: int
    x_scale_inv: Tensor
    w_scale_inv: Tensor
    overflow: Tensor | None = None
    retry: bool = False


def run_dft(
    x: Tensor, w: Tensor, signs: Tensor | None, xs: Tensor, ws: Tensor, block_size: int, groups: int,
    eigenvalues: bool, pair: bool, scales: Scales | None = None,
) -> None:  # fmt: skip
    """Spectra of rows, with ``pair`` also of weights; with ``scales``, in scaled fp16."""
    scaled = scales is not None
    scales = scales or Scales(x, 0, 0, x, x)
    x_basis, x_sizes, x_programs, x_constexprs = _launch_side(
        x, xs, block_size, groups, eigenvalues, "X", scaled=scaled
    )
    w_basis, w_sizes, w_programs, w_constexprs = _launch_side(
        w, ws, block_size, 1 if pair else groups, True, "W", scaled=scaled
    )
    constexprs = transform_constexprs(xs.dtype, block_size, x, w, xs, ws)
    programs = min(x_programs, RETRY_PROGRAMS) if scales.retry else x_programs + pair * w_programs
    launch(
        kernels.dft_kernel, programs, x,
        x, x if signs is None else signs, x_basis, xs, *x_sizes, x_programs, w, w_basis, ws, *w_sizes,
        scales.partial_amax, scales.x_scale_inv, scales.w_scale_inv, x if scales.overflow is None else scales.overflow,
        K=block_size, **(w_constexprs | x_constexprs), SIGN_FLIPS=signs is not None, PAIR=pair,
        SAMPLED=scales.overflow is not None, RETRY=scales.retry,
        X_PARTIALS=scales.x_partials, W_PARTIALS=scales.w_partials,
        X_TARGET_EXPONENT=TARGET_EXPONENT - growth(block_size, eigenvalues),
        W_TARGET_EXPONENT=TARGET_EXPONENT - growth(block_size, True),
        TERMS=num_terms(xs), TF32=xs.dtype == torch.float32 and tf32(), **constexprs,
    )  # fmt: skip


def run_idft(
    xs: Tensor, ws: Tensor, signs: Tensor | None, bias: Tensor | None, x: Tensor, w: Tensor,
    block_size: int, groups: int, eigenvalues: bool, pair: bool,
    scale_invs: tuple[Tensor | None, ...] = (), x_descale: float = 0.0, w_descale: float = 0.0, relu: bool = False,
) -> None:  # fmt: skip
    """Rows from their spectrum, with ``pair`` also weights; ``scale_invs`` and ``descale`` undo scales.

    ``relu`` follows the bias.
    """
    scaled = xs.dtype == torch.float16 and x_descale > 0
    x_basis, x_sizes, x_programs, x_constexprs = _launch_side(
        x, xs, block_size, groups, eigenvalues, "X", inverse=True, scaled=scaled
    )
    w_basis, w_sizes, w_programs, w_constexprs = _launch_side(
        w, ws, block_size, 1 if pair else groups, True, "W", inverse=True
    )
    constexprs = transform_constexprs(ws.dtype if pair else xs.dtype, block_size, x, w, xs, ws)
    w_programs *= pair
    split_k = ws.shape[0] if pair and ws.dim() > 4 else 1
    launch(
        kernels.idft_kernel, x_programs + w_programs, x,
        xs, x if signs is None else signs, x_basis, x if bias is None else bias, x, *x_sizes,
        ws, w_basis, w, *w_sizes, w_programs, split_k,
        *(scale_invs if x_descale else (x, x, x)), K=block_size, **(w_constexprs | x_constexprs),
        SIGN_FLIPS=signs is not None, BIAS=bias is not None, RELU=relu, PAIR=pair, SPLIT_K=split_k > 1,
        X_DESCALE=x_descale, W_DESCALE=w_descale, **constexprs,
    )  # fmt: skip


def spectrum_like(x: Tensor, block_size: int, groups: int, dtype: torch.dtype, *terms: int) -> Tensor:
    """An uninitialized spectrum of rows; with ``terms``, a leading dimension of that size."""
    blocks = groups * -(-(x.shape[1] // groups) // block_size)
    return x.new_empty(*terms, slot_count(block_size), x.shape[0] * x.shape[2], 2, blocks, dtype=dtype)


def _rows_like(spectrum: Tensor, channels: int, length: int, channels_last: bool, dtype: torch.dtype) -> Tensor:
    return empty_rows(spectrum, (spectrum.shape[-3] // length, channels, length), channels_last, dtype)


@cached_launches
def _dft(
    x: Tensor, signs: Tensor | None, block_size: int, groups: int, eigenvalues: bool, dtype: torch.dtype
) -> Tensor:
    """``x (N, C, L)`` to its spectrum ``[F, N*L, 2, blocks]`` in ``dtype``; blocks do not cross groups."""
    spectrum = spectrum_like(x, block_size, groups, dtype)
    run_dft(x, x, signs, spectrum, spectrum, block_size, groups, eigenvalues, pair=False)
    return spectrum


@cached_launches
def _idft(
    spectrum: Tensor, signs: Tensor | None, bias: Tensor | None, block_size: int, groups: int, eigenvalues: bool,
    channels: int, length: int, channels_last: bool, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """The transpose of `dft`, plus ``bias (C)``: ``(N, C, L)`` in ``dtype``."""
    x, spectrum = _rows_like(spectrum, channels, length, channels_last, dtype), spectrum.contiguous()
    bias = None if bias is None else bias.contiguous()
    run_idft(spectrum, spectrum, signs, bias, x, x, block_size, groups, eigenvalues, pair=False)
    return x


@torch.library.custom_op("lamina::circulant_dft_pair", mutates_args=())
def dft_pair(
    x: Tensor, w: Tensor, signs: Tensor | None, block_size: int, groups: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Spectra of rows and of weights ``(P, q*k, taps)`` in one launch."""
    xs, ws = spectrum_like(x, block_size, groups, dtype), spectrum_like(w, block_size, 1, dtype)
    run_dft(x, w, signs, xs, ws, block_size, groups, False, pair=True)
    return xs, ws


@torch.library.custom_op("lamina::circulant_idft_pair", mutates_args=())
def idft_pair(
    xs: Tensor, ws: Tensor, signs: Tensor | None, block_size: int, groups: int, channels: int, length: int,
    channels_last: bool, x_dtype: torch.dtype, taps: int, w_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The transpose of `dft_pair` in one launch."""
    x = _rows_like(xs, channels, length, channels_last, x_dtype)
    w = _rows_like(ws, ws.shape[-1] * block_size, taps, True, w_dtype)
    run_idft(xs.contiguous(), ws.contiguous(), signs, None, x, w, block_size, groups, False, pair=True)
    return x, w


dft = torch.library.custom_op("lamina::circulant_dft", _dft, mutates_args=())
idft = torch.library.custom_op("lamina::circulant_idft", _idft, mutates_args=())


@dft.register_fake
def _(x: Tensor, signs: Tensor | None, block_size: int, groups: int, eigenvalues: bool, dtype: torch.dtype) -> Tensor:
    return spectrum_like(x, block_size, groups, dtype)


@idft.register_fake
def _(
    spectrum: Tensor, signs: Tensor | None, bias: Tensor | None, block_size: int, groups: int, eigenvalues: bool,
    channels: int, length: int, channels_last: bool, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    return _rows_like(spectrum, channels, length, channels_last, dtype)


@dft_pair.register_fake
def _(
    x: Tensor, w: Tensor, signs: Tensor | None, block_size: int, groups: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return spectrum_like(x, block_size, groups, dtype), spectrum_like(w, block_size, 1, dtype)


@idft_pair.register_fake
def _(
    xs: Tensor, ws: Tensor, signs: Tensor | None, block_size: int, groups: int, channels: int, length: int,
    channels_last: bool, x_dtype: torch.dtype, taps: int, w_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    x = _rows_like(xs, channels, length, channels_last, x_dtype)
    return x, _rows_like(ws, ws.shape[-1] * block_size, taps, True, w_dtype)


def _save_dft(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, signs, ctx.block_size, ctx.groups, ctx.eigenvalues, _ = inputs
    ctx.save_for_backward(signs)
    ctx.rows = x.shape[1], x.shape[2], is_channels_last(x), x.dtype


def _dft_gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    (signs,) = ctx.saved_tensors
    options = signs, None, ctx.block_size, ctx.groups, ctx.eigenvalues
    return call_in_backward(idft, _idft, g, *options, *ctx.rows), *(None,) * 5


def _save_idft(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    spectrum, signs, bias, ctx.block_size, ctx.groups, ctx.eigenvalues, *_ = inputs
    ctx.save_for_backward(signs)
    ctx.dtype, ctx.bias_dtype = spectrum.dtype, None if bias is None else bias.dtype


def _idft_gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    (signs,) = ctx.saved_tensors
    spectrum = bias = None
    if ctx.needs_input_grad[0]:
        spectrum = dft(g, signs, ctx.block_size, ctx.groups, ctx.eigenvalues, ctx.dtype)
    if ctx.needs_input_grad[2]:
        bias = channel_sums(g, ctx.bias_dtype)
    return spectrum, None, bias, *(None,) * 7


def _save_dft_pair(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, w, signs, ctx.block_size, ctx.groups, _ = inputs
    ctx.save_for_backward(signs)
    ctx.rows = x.shape[1], x.shape[2], is_channels_last(x), x.dtype
    ctx.weights = w.shape[2], w.dtype
    ctx.weight_channels = w.shape[1]


def _dft_pair_gradient(ctx: Any, gx: Tensor, gw: Tensor) -> tuple[Any, ...]:
    (signs,) = ctx.saved_tensors
    x = w = None
    match ctx.needs_input_grad[:2]:
        case [True, True]:
            x, w = idft_pair(gx, gw, signs, ctx.block_size, ctx.groups, *ctx.rows, *ctx.weights)
        case [True, False]:
            x = idft(gx, signs, None, ctx.block_size, ctx.groups, False, *ctx.rows)
        case [False, True]:
            taps, dtype = ctx.weights
            w = idft(gw, None, None, ctx.block_size, 1, True, ctx.weight_channels, taps, True, dtype)
    return x, w, *(None,) * 4


def _save_idft_pair(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    xs, _, signs, ctx.block_size, ctx.groups, *_ = inputs
    ctx.save_for_backward(signs)
    ctx.dtype = xs.dtype


def _idft_pair_gradient(ctx: Any, gx: Tensor, gw: Tensor) -> tuple[Any, ...]:
    (signs,) = ctx.saved_tensors
    return *dft_pair(gx, gw, signs, ctx.block_size, ctx.groups, ctx.dtype), *(None,) * 9


dft.register_autograd(_dft_gradient, setup_context=_save_dft)
dft_eager = without_dispatch(dft, _dft, _save_dft, _dft_gradient)
register_kernel(idft, _idft)
idft.register_autograd(_idft_gradient, setup_context=_save_idft)
dft_pair.register_autograd(_dft_pair_gradient, setup_context=_save_dft_pair)
idft_pair.register_autograd(_idft_pair_gradient, setup_context=_save_idft_pair)


def transform_flops(batch: int, length: int, blocks: int, block_size: int) -> int:
    """FLOPs of a transform."""
    return kernels.dft_cost(batch * length, blocks, block_size, 0, 0).flops


@register_flop_formula(torch.ops.lamina.circulant_dft)
def _(x: Any, signs: Any, block_size: int, *_: Any, out_shape: Any, **__: Any) -> int:
    return transform_flops(x[0], x[2], out_shape[-1], block_size)


@register_flop_formula(torch.ops.lamina.circulant_idft)
def _(spectrum: Any, signs: Any, bias: Any, block_size: int, *_: Any, **__: Any) -> int:
    return transform_flops(1, spectrum[1], spectrum[-1], block_size)


@register_flop_formula(torch.ops.lamina.circulant_dft_pair)
def _(x: Any, w: Any, signs: Any, block_size: int, *_: Any, out_shape: Any, **__: Any) -> int:
    return sum(transform_flops(1, spectrum[1], spectrum[-1], block_size) for spectrum in out_shape)


@register_flop_formula(torch.ops.lamina.circulant_idft_pair)
def _(xs: Any, ws: Any, signs: Any, block_size: int, *_: Any, **__: Any) -> int:
    return sum(transform_flops(1, spectrum[1], spectrum[-1], block_size) for spectrum in (xs, ws))

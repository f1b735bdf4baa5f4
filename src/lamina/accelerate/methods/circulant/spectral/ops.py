"""Transforms as PyTorch operators: each is the other's transpose, so gradients of any order are again these operators.

Rows come as ``x (N, C, L)`` of any strides, weights as the view ``(P, q*k, taps)`` of a parameter ``(P, *kernel, q,
k)``. ``signs (k)``, if any, multiply the numbers of each block of rows, within their transform. Spectra have the
layouts that the kernels give.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.methods.circulant.basis import basis, growth, parts, slot_count
from lamina.accelerate.methods.circulant.ops import (
    SHORT,
    common,
    empty_rows,
    is_channels_last,
    tf32,
    workers,
)
from lamina.accelerate.methods.circulant.spectral import kernels
from lamina.accelerate.methods.circulant.tiles import transform_tile
from lamina.accelerate.runtime.eager_op import direct, in_backward
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.launch_cache import taped
from lamina.errors import UsageError

TOP = int(kernels.TOP.value)

AGAIN = 512
"""Programs that transform rows once more, should that be needed: few, since mostly it is not."""


@cache
def _waves(block_size: int, eigenvalues: bool, dtype: torch.dtype, device: torch.device, rounded: bool) -> Tensor:
    """A basis as kernels read it, which may be before what is in front of them has ended.

    So it is made on the host, from where a copy is waited for, and once.

    Raises:
        UsageError: a graph is being captured, in which nothing can be waited for.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise UsageError(f"blocks of {block_size}: expected a first call before a CUDA graph is captured, not in it")
    if dtype == torch.float16:  # and what float16 leaves of it
        wide = basis(block_size, eigenvalues=eigenvalues, dtype=torch.float64) * kernels.WAVES.value
        return torch.stack([wide.half(), (wide - wide.half()).half()]).to(device)
    matrix = basis(block_size, eigenvalues=eigenvalues, dtype=dtype)
    if rounded:  # to what tensor cores read, which would truncate it
        matrix = ((matrix.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
    return matrix.contiguous().to(device)


def waves_of(spectrum: Tensor, block_size: int, eigenvalues: bool, scaled: bool = False) -> Tensor:
    """The basis that such a spectrum is made with, and undone: of halves where they have float32's accuracy."""
    narrow = spectrum.dtype not in (torch.float64, torch.float32)
    halves = scaled or (spectrum.dtype == torch.float32 and block_size > SHORT)
    kind = torch.float16 if halves else torch.float32 if narrow else spectrum.dtype
    return _waves(block_size, eigenvalues, kind, spectrum.device, narrow)


def transform_switches(spectral: torch.dtype, block_size: int, *tensors: Tensor) -> dict[str, Any]:
    """Narrow spectra hold no more than TF32 does; wide ones are transformed at full accuracy, also in TF32 mode."""
    narrow = spectral not in (torch.float32, torch.float64)
    return common(spectral, block_size, *tensors) | {"PRECISION": "tf32" if narrow else "ieee"}


def _side(
    x: Tensor, spectrum: Tensor, block_size: int, groups: int, eigenvalues: bool, name: str, back: bool = False,
    scaled: bool = False,
) -> Any:  # fmt: skip
    """What a transform kernel is told of one side: basis, sizes, strides; programs; tile."""
    batch, channels, length = x.shape
    rows, across = batch * length, spectrum.shape[-1]
    waves = waves_of(spectrum, block_size, eigenvalues, scaled)
    alone, itemsizes = length == 1, (x.itemsize, spectrum.itemsize)
    exact = waves.dtype == torch.float16 and not tf32()
    tile = transform_tile(block_size, rows, across, alone or x.stride(1) == 1, back, scaled, alone, itemsizes, exact)
    sizes = (rows, length, channels // groups, *x.stride())
    programs = -(-rows // tile.rows) * -(-across // tile.blocks) * -(-_widest(block_size) // tile.columns)
    meta = {f"{name}_BLOCKS": across // groups, f"{name}_GROUPS": groups}
    meta |= {f"{name}_ROWS": tile.rows, f"{name}_AT_ONCE": tile.blocks, "BK": tile.depth, "BN": tile.columns}
    if not back:
        meta[f"{name}_WHOLE"] = tile.whole
    return waves, sizes, programs, meta | workers(tile)


def _widest(block_size: int) -> int:
    return 2 * slot_count(block_size)


@dataclass(frozen=True)
class Scales:
    """What brings rows and weights into float16's range: ``peaks``, how many are whose, and room for what undoes it.

    Where ``misled`` is given, the scale of rows is a guess, and a number beyond it is told there; ``again``, rows are
    transformed once more if one was.
    """

    peaks: Tensor
    x_shares: int
    w_shares: int
    x_down: Tensor
    w_down: Tensor
    misled: Tensor | None = None
    again: bool = False


def run_dft(
    x: Tensor, w: Tensor, signs: Tensor | None, xs: Tensor, ws: Tensor, block_size: int, groups: int,
    eigenvalues: bool, pair: bool, scales: Scales | None = None,
) -> None:  # fmt: skip
    """Spectra of rows, with ``pair`` weights too, under ``scales``."""
    scaled = scales is not None
    scales = scales or Scales(x, 0, 0, x, x)
    x_waves, x_sizes, x_programs, x_meta = _side(x, xs, block_size, groups, eigenvalues, "X", scaled=scaled)
    w_waves, w_sizes, w_programs, w_meta = _side(w, ws, block_size, 1 if pair else groups, True, "W", scaled=scaled)
    switches = transform_switches(xs.dtype, block_size, x, w, xs, ws)
    programs = min(x_programs, AGAIN) if scales.again else x_programs + pair * w_programs
    launch(
        kernels.dft_kernel, programs, x,
        x, x if signs is None else signs, x_waves, xs, *x_sizes, x_programs, w, w_waves, ws, *w_sizes,
        scales.peaks, scales.x_down, scales.w_down, x if scales.misled is None else scales.misled,
        K=block_size, **(w_meta | x_meta), SIGNED=signs is not None, PAIR=pair,
        GUESSED=scales.misled is not None, AGAIN=scales.again, X_SHARES=scales.x_shares, W_SHARES=scales.w_shares,
        X_TOP=TOP - growth(block_size, eigenvalues), W_TOP=TOP - growth(block_size, True),
        PARTS=parts(xs), TF32=xs.dtype == torch.float32 and tf32(), **switches,
    )  # fmt: skip


def run_idft(
    xs: Tensor, ws: Tensor, signs: Tensor | None, bias: Tensor | None, x: Tensor, w: Tensor,
    block_size: int, groups: int, eigenvalues: bool, pair: bool,
    downs: tuple[Tensor, ...] = (), x_undo: float = 0.0, w_undo: float = 0.0,
) -> None:  # fmt: skip
    """Rows from their spectrum, with ``pair`` weights too; three ``downs`` and ``undo`` undo scales: see `kernels`."""
    scaled = xs.dtype == torch.float16 and x_undo > 0
    x_waves, x_sizes, x_programs, x_meta = _side(x, xs, block_size, groups, eigenvalues, "X", back=True, scaled=scaled)
    w_waves, w_sizes, w_programs, w_meta = _side(w, ws, block_size, 1 if pair else groups, True, "W", back=True)
    switches = transform_switches(ws.dtype if pair else xs.dtype, block_size, x, w, xs, ws)
    w_programs *= pair
    splits = ws.shape[0] if pair and ws.dim() > 4 else 1
    launch(
        kernels.idft_kernel, x_programs + w_programs, x,
        xs, x if signs is None else signs, x_waves, x if bias is None else bias, x, *x_sizes,
        ws, w_waves, w, *w_sizes, w_programs, splits,
        *(downs if x_undo else (x, x, x)), K=block_size, **(w_meta | x_meta), SIGNED=signs is not None,
        BIAS=bias is not None, PAIR=pair, SPLIT=splits > 1, X_UNDO=x_undo, W_UNDO=w_undo, **switches,
    )  # fmt: skip


def spectrum_like(x: Tensor, block_size: int, groups: int, dtype: torch.dtype, *parts: int) -> Tensor:
    """Memory for the spectrum of rows, in so many ``parts`` if that is said."""
    blocks = groups * -(-(x.shape[1] // groups) // block_size)
    return x.new_empty(*parts, slot_count(block_size), x.shape[0] * x.shape[2], 2, blocks, dtype=dtype)


def _rows_like(spectrum: Tensor, channels: int, length: int, channels_last: bool, dtype: torch.dtype) -> Tensor:
    return empty_rows(spectrum, (spectrum.shape[-3] // length, channels, length), channels_last, dtype)


@taped
def _dft(
    x: Tensor, signs: Tensor | None, block_size: int, groups: int, eigenvalues: bool, dtype: torch.dtype
) -> Tensor:
    """``x (N, C, L)`` to its spectrum ``[F, N*L, 2, blocks]`` in ``dtype``; blocks do not cross groups."""
    spectrum = spectrum_like(x, block_size, groups, dtype)
    run_dft(x, x, signs, spectrum, spectrum, block_size, groups, eigenvalues, pair=False)
    return spectrum


@taped
def _idft(
    spectrum: Tensor, signs: Tensor | None, bias: Tensor | None, block_size: int, groups: int, eigenvalues: bool,
    channels: int, length: int, channels_last: bool, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """The transpose of `dft`, with ``bias (C)`` added: ``(N, C, L)`` in ``dtype``."""
    x, spectrum = _rows_like(spectrum, channels, length, channels_last, dtype), spectrum.contiguous()
    bias = None if bias is None else bias.contiguous()
    run_idft(spectrum, spectrum, signs, bias, x, x, block_size, groups, eigenvalues, pair=False)
    return x


@torch.library.custom_op("lamina::circulant_dft_pair", mutates_args=())
def dft_pair(
    x: Tensor, w: Tensor, signs: Tensor | None, block_size: int, groups: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Spectra of rows and of weights ``(P, q*k, taps)``, in one launch."""
    xs, ws = spectrum_like(x, block_size, groups, dtype), spectrum_like(w, block_size, 1, dtype)
    run_dft(x, w, signs, xs, ws, block_size, groups, False, pair=True)
    return xs, ws


@torch.library.custom_op("lamina::circulant_idft_pair", mutates_args=())
def idft_pair(
    xs: Tensor, ws: Tensor, signs: Tensor | None, block_size: int, groups: int, channels: int, length: int,
    channels_last: bool, x_dtype: torch.dtype, taps: int, w_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The transpose of `dft_pair`, in one launch."""
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


def _keep_dft(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, signs, ctx.block_size, ctx.groups, ctx.eigenvalues, _ = inputs
    ctx.save_for_backward(signs)
    ctx.rows = x.shape[1], x.shape[2], is_channels_last(x), x.dtype


def _dft_gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    (signs,) = ctx.saved_tensors
    how = signs, None, ctx.block_size, ctx.groups, ctx.eigenvalues
    return in_backward(idft, _idft, g, *how, *ctx.rows), *(None,) * 5


def _keep_idft(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    spectrum, signs, bias, ctx.block_size, ctx.groups, ctx.eigenvalues, *_ = inputs
    ctx.save_for_backward(signs)
    ctx.dtype, ctx.bias_dtype = spectrum.dtype, None if bias is None else bias.dtype


def _idft_gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    (signs,) = ctx.saved_tensors
    spectrum = bias = None
    if ctx.needs_input_grad[0]:
        spectrum = dft(g, signs, ctx.block_size, ctx.groups, ctx.eigenvalues, ctx.dtype)
    if ctx.needs_input_grad[2]:
        bias = g.sum((0, 2), dtype=ctx.bias_dtype)
    return spectrum, None, bias, *(None,) * 7


def _keep_dft_pair(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
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


def _keep_idft_pair(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    xs, _, signs, ctx.block_size, ctx.groups, *_ = inputs
    ctx.save_for_backward(signs)
    ctx.dtype = xs.dtype


def _idft_pair_gradient(ctx: Any, gx: Tensor, gw: Tensor) -> tuple[Any, ...]:
    (signs,) = ctx.saved_tensors
    return *dft_pair(gx, gw, signs, ctx.block_size, ctx.groups, ctx.dtype), *(None,) * 9


dft.register_autograd(_dft_gradient, setup_context=_keep_dft)
dft_directly = direct(dft, _dft, _keep_dft, _dft_gradient)
idft.register_autograd(_idft_gradient, setup_context=_keep_idft)
dft_pair.register_autograd(_dft_pair_gradient, setup_context=_keep_dft_pair)
idft_pair.register_autograd(_idft_pair_gradient, setup_context=_keep_idft_pair)


def transform_flops(batch: int, length: int, blocks: int, block_size: int) -> int:
    """Operations of a transform of rows."""
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

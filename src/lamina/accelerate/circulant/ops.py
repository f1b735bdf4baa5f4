"""The kernels as PyTorch operators, each with its derivative in terms of the others.

The transforms are linear and each is the other's transpose. The frequency-wise product, its input gradient and its
weight gradient are the three slices of one trilinear form. So the set is closed under differentiation: gradients of any
order are again these operators, and nothing is hidden in a context.

Spectra have the layouts that kernels.py gives. Rows come as ``x (N, C, L)`` of any strides, weights as the view
``(P, q*k, taps)`` of a parameter ``(P, *kernel, q, k)``. float32 products follow
``torch.backends.cuda.matmul.allow_tf32``, as the vendor library's do: three TF32 products keep float32 accuracy.
"""

from functools import lru_cache
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate import ops as shared
from lamina.accelerate.circulant import kernels
from lamina.accelerate.circulant.basis import basis, growth, slot_count
from lamina.accelerate.circulant.tiles import (
    ProductTile,
    TransformTile,
    product_tile,
    row_splits,
    scales_pay,
    transform_tile,
    weight_tile,
    weight_tiles,
)
from lamina.accelerate.circulant.window import Window
from lamina.accelerate.halves.ops import pair_peaks
from lamina.accelerate.kernels import reciprocal
from lamina.accelerate.ops import INTERPRETED, index_type, launch, precision

DTYPES = (*shared.DTYPES, torch.float64)

SHORT = 16
"""Products in a sum that is made by fp32 multiply-adds where fp32 is asked for."""

SMALL = 2**17
"""Numbers in the largest tensor of a kernel that is launched early."""

_TOP = 14
"""Spectra in float16 stay below ``2**(_TOP + 1)`` by their scales, and sums of their products by `_room`."""

WIDE = "tf32x3" if INTERPRETED else "bf16x6"
"""How fp32 is transformed: six products of bf16, which keep all its digits at the cost of three of TF32."""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # compiled graphs are made again on a change
def _tf32() -> bool:
    return precision() == "tf32"


def halved(dtype: torch.dtype, x: Tensor, w: Tensor, out_channels: int, window: Window) -> bool:
    """Whether these are multiplied as float16 under scales, which has the digits of TF32, at twice its rate."""
    pays = scales_pay(x.numel(), w.numel(), window.rows_out * out_channels)
    return x.dtype == w.dtype == dtype == torch.float32 and _tf32() and pays


def _room(summed: int) -> float:
    """The power of two that so many products of spectra in float16 are divided by, to stay below ``2**(_TOP + 1)``."""
    return 2.0 ** (_TOP + 1 + (summed - 1).bit_length())


def check_device(tensor: Tensor) -> None:
    """Refuse what no kernel can read.

    Raises:
        MissingError: the tensor is not on a GPU, and kernels are not interpreted.
        UnsupportedError: its type is not one of `DTYPES`.
    """
    shared.check_device(tensor, "circulant", 'use impl="reference"', DTYPES)


@lru_cache(maxsize=64)
def _waves(block_size: int, eigenvalues: bool, dtype: torch.dtype, device: torch.device, rounded: bool) -> Tensor:
    if dtype == torch.float16:  # and what float16 leaves of it
        wide = basis(block_size, eigenvalues=eigenvalues, dtype=torch.float64, device=device)
        return torch.stack([wide.half(), (wide - wide.half()).half()])
    matrix = basis(block_size, eigenvalues=eigenvalues, dtype=dtype, device=device)
    if rounded:  # to what tensor cores read, which would truncate it
        matrix = ((matrix.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
    return matrix.contiguous()


def exactness(dtype: torch.dtype, summed: int) -> str:
    """How sums of so many products are made: the rounding of three TF32 products does not average out in short ones."""
    return "ieee" if dtype == torch.float64 or (summed <= SHORT and not _tf32()) else precision()


def common(dtype: torch.dtype, summed: int, *tensors: Tensor) -> dict[str, Any]:
    """Switches for sums of ``summed`` products of elements of ``dtype``."""
    for tensor in tensors:
        check_device(tensor)
    return {
        "ACC": tl.float64 if dtype == torch.float64 else tl.float32,
        "PRECISION": exactness(dtype, summed),
        "UPCAST": INTERPRETED and dtype != torch.float64,
        "INDEX": index_type(*tensors),
        **early(*tensors),
    }


def early(*tensors: Tensor) -> dict[str, bool]:
    """Whether a kernel on these may be launched before the one in front of it has ended, which Hopper GPUs can do.

    It hides the launch, which small kernels gain by; large ones would take room from the kernel in front.
    """
    small = max(tensor.numel() for tensor in tensors) <= SMALL
    return {"EARLY": True, "launch_pdl": True} if small and _waits(tensors[0].device) else {"EARLY": False}


@lru_cache(maxsize=16)
def _waits(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


def _transform_switches(spectral: torch.dtype, block_size: int, *tensors: Tensor) -> dict[str, Any]:
    """Narrow spectra hold no more than TF32 does; wide ones are transformed at full accuracy, also in TF32 mode."""
    exact = "tf32x3" if _tf32() else WIDE
    wide = "ieee" if spectral == torch.float64 or block_size <= SHORT else exact
    narrow = spectral not in (torch.float32, torch.float64)
    return common(spectral, block_size, *tensors) | {"PRECISION": "tf32" if narrow else wide}


def workers(tile: TransformTile | ProductTile) -> dict[str, int]:
    """How many warps share a tile, and how many loads are in flight."""
    return {"num_warps": tile.warps, "num_stages": tile.stages}


def _side(
    x: Tensor, spectrum: Tensor, block_size: int, groups: int, eigenvalues: bool, name: str, back: bool = False,
    scaled: bool = False,
) -> Any:  # fmt: skip
    """What a transform kernel is told of one side: basis, sizes, strides; programs; tile."""
    batch, channels, length = x.shape
    rows, across = batch * length, spectrum.shape[-1]
    rounded = spectrum.dtype not in (torch.float64, torch.float32)
    wide = spectrum.dtype if scaled or not rounded else torch.float32
    waves = _waves(block_size, eigenvalues, wide, x.device, rounded)
    tile = transform_tile(block_size, rows, across, length == 1 or x.stride(1) == 1, back, scaled)
    sizes = (rows, length, channels // groups, *x.stride())
    programs = -(-rows // tile.rows) * -(-across // tile.blocks) * -(-_widest(block_size) // tile.columns)
    meta = {f"{name}_BLOCKS": across // groups, f"{name}_GROUPS": groups}
    meta |= {f"{name}_ROWS": tile.rows, f"{name}_AT_ONCE": tile.blocks, "BK": tile.depth, "BN": tile.columns}
    return waves, sizes, programs, meta | workers(tile)


def _widest(block_size: int) -> int:
    return 2 * slot_count(block_size)


def _run_dft(
    x: Tensor, w: Tensor, xs: Tensor, ws: Tensor, block_size: int, groups: int, eigenvalues: bool, pair: bool,
    scales: tuple[Tensor, int, int, Tensor, Tensor] | None = None,
) -> None:  # fmt: skip
    peaks, x_shares, w_shares, *downs = scales or (x, 0, 0, x, x)
    scaled = scales is not None
    x_waves, x_sizes, x_programs, x_meta = _side(x, xs, block_size, groups, eigenvalues, "X", scaled=scaled)
    w_waves, w_sizes, w_programs, w_meta = _side(w, ws, block_size, 1 if pair else groups, True, "W", scaled=scaled)
    switches = _transform_switches(xs.dtype, block_size, x, w, xs, ws)
    launch(
        kernels.dft_kernel, x_programs + pair * w_programs, x,
        x, x_waves, xs, *x_sizes, x_programs, w, w_waves, ws, *w_sizes, peaks, *downs,
        K=block_size, **(w_meta | x_meta), PAIR=pair, X_SHARES=x_shares, W_SHARES=w_shares,
        X_TOP=_TOP - growth(block_size, eigenvalues), W_TOP=_TOP - growth(block_size, True),
        TF32=xs.dtype == torch.float32 and _tf32(), **switches,
    )  # fmt: skip


def _run_idft(
    xs: Tensor, ws: Tensor, bias: Tensor | None, x: Tensor, w: Tensor,
    block_size: int, groups: int, eigenvalues: bool, pair: bool,
    downs: tuple[Tensor, Tensor, Tensor] | None = None, x_undo: float = 0.0, w_undo: float = 0.0,
) -> None:  # fmt: skip
    scaled = xs.dtype == torch.float16 and downs is not None
    x_waves, x_sizes, x_programs, x_meta = _side(x, xs, block_size, groups, eigenvalues, "X", back=True, scaled=scaled)
    w_waves, w_sizes, w_programs, w_meta = _side(w, ws, block_size, 1 if pair else groups, True, "W", back=True)
    switches = _transform_switches(ws.dtype if pair else xs.dtype, block_size, x, w, xs, ws)
    w_programs *= pair
    splits = ws.shape[0] if ws.dim() > 4 else 1
    launch(
        kernels.idft_kernel, x_programs + w_programs, x,
        xs, x_waves, x if bias is None else bias, x, *x_sizes, ws, w_waves, w, *w_sizes, w_programs, splits,
        *(downs or (x, x, x)), K=block_size, **(w_meta | x_meta), BIAS=bias is not None, PAIR=pair, SPLIT=splits > 1,
        X_UNDO=x_undo, W_UNDO=w_undo, **switches,
    )  # fmt: skip


def _spectrum_like(x: Tensor, block_size: int, groups: int, dtype: torch.dtype) -> Tensor:
    blocks = groups * -(-(x.shape[1] // groups) // block_size)
    return x.new_empty(slot_count(block_size), x.shape[0] * x.shape[2], 2, blocks, dtype=dtype)


def _rows_like(spectrum: Tensor, channels: int, length: int, channels_last: bool, dtype: torch.dtype) -> Tensor:
    return _empty_rows(spectrum, (spectrum.shape[1] // length, channels, length), channels_last, dtype)


def _empty_rows(
    like: Tensor, shape: tuple[int, int, int], channels_last: bool, dtype: torch.dtype = torch.float32
) -> Tensor:
    _, channels, length = shape
    if channels_last:  # no view: what an operator returns as one may not be changed in place
        return like.new_empty_strided(shape, (channels * length, 1, channels), dtype=dtype)
    return like.new_empty(shape, dtype=dtype)


def _channels_last(x: Tensor) -> bool:
    return x.shape[2] > 1 and x.stride(1) == 1


@torch.library.custom_op("lamina::circulant_dft", mutates_args=())
def dft(x: Tensor, block_size: int, groups: int, eigenvalues: bool, dtype: torch.dtype) -> Tensor:
    """``x (N, C, L)`` to its spectrum ``[F, N*L, 2, blocks]`` in ``dtype``; blocks do not cross groups."""
    spectrum = _spectrum_like(x, block_size, groups, dtype)
    _run_dft(x, x, spectrum, spectrum, block_size, groups, eigenvalues, pair=False)
    return spectrum


@torch.library.custom_op("lamina::circulant_idft", mutates_args=())
def idft(
    spectrum: Tensor, bias: Tensor | None, block_size: int, groups: int, eigenvalues: bool,
    channels: int, length: int, channels_last: bool, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """The transpose of `dft`, with ``bias (C)`` added: ``(N, C, L)`` in ``dtype``."""
    x, spectrum = _rows_like(spectrum, channels, length, channels_last, dtype), spectrum.contiguous()
    bias = None if bias is None else bias.contiguous()
    _run_idft(spectrum, spectrum, bias, x, x, block_size, groups, eigenvalues, pair=False)
    return x


@torch.library.custom_op("lamina::circulant_dft_pair", mutates_args=())
def dft_pair(x: Tensor, w: Tensor, block_size: int, groups: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Spectra of rows and of weights ``(P, q*k, taps)``, in one launch."""
    xs, ws = _spectrum_like(x, block_size, groups, dtype), _spectrum_like(w, block_size, 1, dtype)
    _run_dft(x, w, xs, ws, block_size, groups, False, pair=True)
    return xs, ws


@torch.library.custom_op("lamina::circulant_idft_pair", mutates_args=())
def idft_pair(
    xs: Tensor, ws: Tensor, block_size: int, groups: int, channels: int, length: int, channels_last: bool,
    x_dtype: torch.dtype, taps: int, w_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The transpose of `dft_pair`, in one launch."""
    x = _rows_like(xs, channels, length, channels_last, x_dtype)
    w = _rows_like(ws, ws.shape[-1] * block_size, taps, True, w_dtype)
    _run_idft(xs.contiguous(), ws.contiguous(), None, x, w, block_size, groups, False, pair=True)
    return x, w


def _steps(window: Window) -> dict[str, Any]:
    return {
        "TAPS": window.taps, "KW": window.kernel_width,
        "SH": window.stride_height, "SW": window.stride_width,
        "PH": window.padding_height, "PW": window.padding_width,
        "DH": window.dilation_height, "DW": window.dilation_width, "POINTWISE": window.pointwise,
    }  # fmt: skip


def _sizes(window: Window) -> tuple[int, ...]:
    return window.height, window.width, window.out_height, window.out_width


def _run_mix(a: Tensor, ws: Tensor, out: Tensor, window: Window, back: bool, down: float = 1.0) -> Tensor:
    a, ws = a.contiguous(), ws.contiguous()
    slots, weight_rows, _, q = ws.shape
    p = weight_rows // (window.taps * window.groups)
    kept, summed = (q, p) if back else (p, q)
    depth = 2 * window.taps * summed
    tile = product_tile(out.shape[1], kept, 2 * summed, window.taps, a.itemsize)
    tiles = -(-out.shape[1] // tile.rows) * -(-kept // tile.columns)
    sizes = _sizes(window)
    launch(
        kernels.mix_kernel, slots * window.groups * tiles, a,
        a, ws, out, a.shape[1], out.shape[1], tiles, *sizes, *map(reciprocal, sizes[:2] if back else sizes[2:]),
        P=p, Q=q, GROUPS=window.groups, **_steps(window), BACK=back,
        BM=tile.rows, BN=tile.columns, BK=tile.depth, STEP=tile.step, DOWN=down,
        **common(a.dtype, depth, a, ws, out), **workers(tile),
    )  # fmt: skip
    return out


def _run_grads(
    dys: Tensor, xs: Tensor, ws: Tensor | None, dxs: Tensor | None, window: Window,
    down: float | None = None,
) -> Tensor:  # fmt: skip
    """Shares of the weight gradient to be added, and with ``ws`` and ``dxs`` the input gradient into the latter.

    With what products are to be multiplied by, ``down``, shares are float32.
    """
    dys, xs = dys.contiguous(), xs.contiguous()
    slots, rows_out, _, outputs = dys.shape
    p, q = outputs // window.groups, xs.shape[-1] // window.groups
    tile = weight_tile(p, q, window.taps, rows_out, dys.itemsize)
    share_tiles = -(-p // tile.rows) * weight_tiles(tile.columns, q, window.taps)
    data = product_tile(xs.shape[1], q, 2 * p, window.taps, dys.itemsize)
    data_tiles = 0 if dxs is None else -(-xs.shape[1] // data.rows) * -(-q // data.columns)
    splits = row_splits(slots * window.groups * share_tiles, rows_out, tile.depth)
    switches = common(dys.dtype, 2 * window.taps * p, dys, xs) | {"W_PRECISION": exactness(dys.dtype, rows_out)}
    wide = torch.float64 if dys.dtype == torch.float64 else torch.float32
    shares = xs.new_empty(splits, slots, outputs * window.taps, 2, q, dtype=wide if splits > 1 or down else dys.dtype)
    tiles, sizes = data_tiles + splits * share_tiles, _sizes(window)
    launch(
        kernels.mix_grads_kernel, slots * window.groups * tiles, dys,
        dys, xs, xs if ws is None else ws.contiguous(), xs if dxs is None else dxs, shares,
        xs.shape[1], rows_out, data_tiles, tiles, slots, *sizes, *map(reciprocal, sizes), splits,
        P=p, Q=q, GROUPS=window.groups, **_steps(window),
        BM=data.rows, BN=data.columns, BK=data.depth, STEP=data.step, DOWN=down or 1.0,
        W_BM=tile.rows, W_BN=tile.columns, W_BK=tile.depth, W_STEP=tile.step,
        **switches, **workers(tile if dxs is None else data),
    )  # fmt: skip
    return shares


def _added(shares: Tensor, dtype: torch.dtype) -> Tensor:
    return shares.sum(0).to(dtype) if len(shares) > 1 else shares[0]


def _output_like(xs: Tensor, ws: Tensor, window: Window) -> Tensor:
    return xs.new_empty(xs.shape[0], window.rows_out, 2, ws.shape[1] // window.taps)


def _input_like(dys: Tensor, ws: Tensor, window: Window) -> Tensor:
    return dys.new_empty(dys.shape[0], window.rows_in, 2, ws.shape[-1] * window.groups)


def _weight_like(dys: Tensor, xs: Tensor, window: Window) -> Tensor:
    return xs.new_empty(xs.shape[0], dys.shape[-1] * window.taps, 2, xs.shape[-1] // window.groups)


@torch.library.custom_op("lamina::circulant_mix", mutates_args=())
def mix(xs: Tensor, ws: Tensor, window: list[int]) -> Tensor:
    """The output's spectrum ``[F, rows_out, 2, G*p]``: rows times weights, frequency by frequency."""
    sizes = Window.unpack(window)
    return _run_mix(xs, ws, _output_like(xs, ws, sizes), sizes, back=False)


@torch.library.custom_op("lamina::circulant_mix_data", mutates_args=())
def mix_data(dys: Tensor, ws: Tensor, window: list[int]) -> Tensor:
    """The input gradient's spectrum ``[F, rows_in, 2, G*q]``."""
    sizes = Window.unpack(window)
    return _run_mix(dys, ws, _input_like(dys, ws, sizes), sizes, back=True)


@torch.library.custom_op("lamina::circulant_mix_weight", mutates_args=())
def mix_weight(dys: Tensor, xs: Tensor, window: list[int]) -> Tensor:
    """The weight gradient's spectrum ``[F, G*p*taps, 2, q]``."""
    return _added(_run_grads(dys, xs, None, None, Window.unpack(window)), dys.dtype)


@torch.library.custom_op("lamina::circulant_mix_grads", mutates_args=())
def mix_grads(dys: Tensor, xs: Tensor, ws: Tensor, window: list[int]) -> tuple[Tensor, Tensor]:
    """`mix_data` and `mix_weight` in one launch."""
    sizes = Window.unpack(window)
    dxs = _input_like(dys, ws, sizes)
    return dxs, _added(_run_grads(dys, xs, ws, dxs, sizes), dys.dtype)


@torch.library.custom_op("lamina::circulant_product", mutates_args=())
def product(
    x: Tensor, w: Tensor, bias: Tensor | None, block_size: int, out_channels: int, window: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The layer in float16 under scales, forward: ``(N, out_channels, L')``; spectra of ``x`` and ``w``; their scales.

    ``x (N, C, L)`` and ``w (P, q*k, taps)`` are float32. Scales are given as what undoes them, each ``[1]``.
    """
    sizes = Window.unpack(window)
    y, xs, ws, x_down, w_down = _product_like(x, w, block_size, out_channels, sizes)
    _run_dft(x, w, xs, ws, block_size, sizes.groups, False, True, (*pair_peaks(x, w, **early(x, w)), x_down, w_down))
    ys, room = _output_like(xs, ws, sizes), _room(sizes.taps * ws.shape[-1])
    _run_mix(xs, ws, ys, sizes, back=False, down=1 / room)
    bias = None if bias is None else bias.contiguous()
    _run_idft(ys, ys, bias, y, y, block_size, sizes.groups, False, False, (x_down, w_down, w_down), room)
    return y, xs, ws, x_down, w_down


@torch.library.custom_op("lamina::circulant_gradients", mutates_args=())
def gradients(
    dy: Tensor, xs: Tensor, ws: Tensor, x_down: Tensor, w_down: Tensor, block_size: int, window: list[int],
    channels: int, channels_last: bool, for_x: bool, for_w: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of `product` by ``x`` and by ``w``, from what it kept; empty where not asked for."""
    sizes = Window.unpack(window)
    dx, dw = _gradients_like(dy, ws, block_size, sizes, channels, channels_last, for_x, for_w)
    dys, y_down = _spectrum_like(dy, block_size, sizes.groups, torch.float16), dy.new_empty(1)
    _run_dft(dy, dy, dys, dys, block_size, sizes.groups, False, False, (*pair_peaks(dy, **early(dy)), y_down, y_down))
    dxs = _input_like(dys, ws, sizes) if for_x else None
    room = _room(sizes.taps * dys.shape[-1] // sizes.groups)
    if dxs is not None and not for_w:
        _run_mix(dys, ws, dxs, sizes, back=True, down=1 / room)
        _run_idft(dxs, dxs, None, dx, dx, block_size, sizes.groups, False, False, (y_down, w_down, w_down), room)
        return dx, dw
    dws = _run_grads(dys, xs, ws, dxs, sizes, 1 / room)
    if dxs is None:
        dws = _added(dws, torch.float32)
        _run_idft(dws, dws, None, dw, dw, block_size, 1, True, False, (y_down, x_down, x_down), 1.0)
    else:
        downs = (y_down, w_down, x_down)
        _run_idft(dxs, dws, None, dx, dw, block_size, sizes.groups, False, True, downs, room, 1.0)
    return dx, dw


def _product_like(x: Tensor, w: Tensor, block_size: int, out_channels: int, window: Window) -> tuple[Tensor, ...]:
    half, pixels = torch.float16, window.out_height * window.out_width
    xs, ws = _spectrum_like(x, block_size, window.groups, half), _spectrum_like(w, block_size, 1, half)
    shape = window.batch, out_channels, pixels
    return _empty_rows(x, shape, _channels_last(x)), xs, ws, x.new_empty(1), x.new_empty(1)


def _gradients_like(
    dy: Tensor, ws: Tensor, block_size: int, window: Window, channels: int, channels_last: bool,
    for_x: bool, for_w: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    x_shape = window.batch, channels, window.height * window.width
    w_shape = ws.shape[1] // window.taps, ws.shape[-1] * block_size, window.taps
    dx = _empty_rows(dy, x_shape, channels_last) if for_x else dy.new_empty(0)
    return dx, _empty_rows(dy, w_shape, True) if for_w else dy.new_empty(0)


@product.register_fake
def _(
    x: Tensor, w: Tensor, bias: Tensor | None, block_size: int, out_channels: int, window: list[int]
) -> tuple[Tensor, ...]:
    return _product_like(x, w, block_size, out_channels, Window.unpack(window))


@gradients.register_fake
def _(
    dy: Tensor, xs: Tensor, ws: Tensor, x_down: Tensor, w_down: Tensor, block_size: int, window: list[int],
    channels: int, channels_last: bool, for_x: bool, for_w: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _gradients_like(dy, ws, block_size, Window.unpack(window), channels, channels_last, for_x, for_w)


@dft.register_fake
def _(x: Tensor, block_size: int, groups: int, eigenvalues: bool, dtype: torch.dtype) -> Tensor:
    return _spectrum_like(x, block_size, groups, dtype)


@idft.register_fake
def _(
    spectrum: Tensor, bias: Tensor | None, block_size: int, groups: int, eigenvalues: bool,
    channels: int, length: int, channels_last: bool, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    return _rows_like(spectrum, channels, length, channels_last, dtype)


@dft_pair.register_fake
def _(x: Tensor, w: Tensor, block_size: int, groups: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _spectrum_like(x, block_size, groups, dtype), _spectrum_like(w, block_size, 1, dtype)


@idft_pair.register_fake
def _(
    xs: Tensor, ws: Tensor, block_size: int, groups: int, channels: int, length: int, channels_last: bool,
    x_dtype: torch.dtype, taps: int, w_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    x = _rows_like(xs, channels, length, channels_last, x_dtype)
    return x, _rows_like(ws, ws.shape[-1] * block_size, taps, True, w_dtype)


@mix.register_fake
def _(xs: Tensor, ws: Tensor, window: list[int]) -> Tensor:
    return _output_like(xs, ws, Window.unpack(window))


@mix_data.register_fake
def _(dys: Tensor, ws: Tensor, window: list[int]) -> Tensor:
    return _input_like(dys, ws, Window.unpack(window))


@mix_weight.register_fake
def _(dys: Tensor, xs: Tensor, window: list[int]) -> Tensor:
    return _weight_like(dys, xs, Window.unpack(window))


@mix_grads.register_fake
def _(dys: Tensor, xs: Tensor, ws: Tensor, window: list[int]) -> tuple[Tensor, Tensor]:
    sizes = Window.unpack(window)
    return _input_like(dys, ws, sizes), _weight_like(dys, xs, sizes)


def _keep_dft(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, ctx.block_size, ctx.groups, ctx.eigenvalues, _ = inputs
    ctx.rows = x.shape[1], x.shape[2], _channels_last(x), x.dtype


def _dft_gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    return idft(g, None, ctx.block_size, ctx.groups, ctx.eigenvalues, *ctx.rows), None, None, None, None


def _keep_idft(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    spectrum, bias, ctx.block_size, ctx.groups, ctx.eigenvalues, *_ = inputs
    ctx.dtype, ctx.bias_dtype = spectrum.dtype, None if bias is None else bias.dtype


def _idft_gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    spectrum = bias = None
    if ctx.needs_input_grad[0]:
        spectrum = dft(g, ctx.block_size, ctx.groups, ctx.eigenvalues, ctx.dtype)
    if ctx.needs_input_grad[1]:
        bias = g.sum((0, 2), dtype=ctx.bias_dtype)
    return spectrum, bias, *(None,) * 7


def _keep_dft_pair(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, w, ctx.block_size, ctx.groups, _ = inputs
    ctx.rows = x.shape[1], x.shape[2], _channels_last(x), x.dtype
    ctx.weights = w.shape[2], w.dtype
    ctx.weight_channels = w.shape[1]


def _dft_pair_gradient(ctx: Any, gx: Tensor, gw: Tensor) -> tuple[Any, ...]:
    x = w = None
    match ctx.needs_input_grad[:2]:
        case [True, True]:
            x, w = idft_pair(gx, gw, ctx.block_size, ctx.groups, *ctx.rows, *ctx.weights)
        case [True, False]:
            x = idft(gx, None, ctx.block_size, ctx.groups, False, *ctx.rows)
        case [False, True]:
            taps, dtype = ctx.weights
            w = idft(gw, None, ctx.block_size, 1, True, ctx.weight_channels, taps, True, dtype)
    return x, w, None, None, None


def _keep_idft_pair(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    xs, _, ctx.block_size, ctx.groups, *_ = inputs
    ctx.dtype = xs.dtype


def _idft_pair_gradient(ctx: Any, gx: Tensor, gw: Tensor) -> tuple[Any, ...]:
    return *dft_pair(gx, gw, ctx.block_size, ctx.groups, ctx.dtype), *(None,) * 8


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


def _keep_product(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, w, bias, ctx.block_size, _, ctx.window = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    _, *kept = output
    ctx.mark_non_differentiable(*kept)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, w, *kept)


def _product_gradient(ctx: Any, gy: Tensor, *_: None) -> tuple[Any, ...]:
    x, w, *kept = ctx.saved_tensors
    for_x, for_w, for_bias, *_ = ctx.needs_input_grad
    bias = gy.sum((0, 2), dtype=ctx.bias_dtype) if for_bias else None
    if torch.is_grad_enabled():  # to be differentiated again: by the operators that can be
        groups, rows, taps = Window.unpack(ctx.window).groups, (*x.shape[1:], _channels_last(x), x.dtype), w.shape[2]
        xs, ws = dft_pair(x, w, ctx.block_size, groups, x.dtype)
        dys = dft(gy, ctx.block_size, groups, False, x.dtype)
        dx, dw = idft_pair(*mix_grads(dys, xs, ws, ctx.window), ctx.block_size, groups, *rows, taps, w.dtype)
    else:
        dx, dw = gradients(gy, *kept, ctx.block_size, ctx.window, x.shape[1], _channels_last(x), for_x, for_w)
    return dx if for_x else None, dw if for_w else None, bias, None, None, None


product.register_autograd(_product_gradient, setup_context=_keep_product)
dft.register_autograd(_dft_gradient, setup_context=_keep_dft)
idft.register_autograd(_idft_gradient, setup_context=_keep_idft)
dft_pair.register_autograd(_dft_pair_gradient, setup_context=_keep_dft_pair)
idft_pair.register_autograd(_idft_pair_gradient, setup_context=_keep_idft_pair)
mix.register_autograd(_mix_gradient, setup_context=_keep_mix)
mix_data.register_autograd(_mix_data_gradient, setup_context=_keep_mix)
mix_weight.register_autograd(_mix_weight_gradient, setup_context=_keep_mix)
mix_grads.register_autograd(_mix_grads_gradient, setup_context=_keep_mix)


def _transform_flops(batch: int, length: int, blocks: int, block_size: int) -> int:
    return kernels.dft_cost(batch * length, blocks, block_size, 0, 0).flops


def _mix_flops(window: list[int], p: int, q: int, slots: int) -> int:
    sizes = Window.unpack(window)
    return kernels.mix_cost(sizes, p, q, slots, 0).flops


@register_flop_formula(torch.ops.lamina.circulant_dft)
def _(x: Any, block_size: int, *_: Any, out_shape: Any, **__: Any) -> int:
    return _transform_flops(x[0], x[2], out_shape[-1], block_size)


@register_flop_formula(torch.ops.lamina.circulant_idft)
def _(spectrum: Any, bias: Any, block_size: int, *_: Any, **__: Any) -> int:
    return _transform_flops(1, spectrum[1], spectrum[-1], block_size)


@register_flop_formula(torch.ops.lamina.circulant_dft_pair)
def _(x: Any, w: Any, block_size: int, *_: Any, out_shape: Any, **__: Any) -> int:
    return sum(_transform_flops(1, spectrum[1], spectrum[-1], block_size) for spectrum in out_shape)


@register_flop_formula(torch.ops.lamina.circulant_idft_pair)
def _(xs: Any, ws: Any, block_size: int, *_: Any, **__: Any) -> int:
    return sum(_transform_flops(1, spectrum[1], spectrum[-1], block_size) for spectrum in (xs, ws))


@register_flop_formula([torch.ops.lamina.circulant_mix, torch.ops.lamina.circulant_mix_data])
def _(a: Any, ws: Any, window: list[int], *_: Any, **__: Any) -> int:
    sizes = Window.unpack(window)
    return _mix_flops(window, ws[1] // (sizes.taps * sizes.groups), ws[-1], a[0])


@register_flop_formula(torch.ops.lamina.circulant_mix_weight)
def _(dys: Any, xs: Any, window: list[int], *_: Any, **__: Any) -> int:
    groups = Window.unpack(window).groups
    return _mix_flops(window, dys[-1] // groups, xs[-1] // groups, dys[0])


@register_flop_formula(torch.ops.lamina.circulant_mix_grads)
def _(dys: Any, xs: Any, ws: Any, window: list[int], *_: Any, **__: Any) -> int:
    groups = Window.unpack(window).groups
    return 2 * _mix_flops(window, dys[-1] // groups, xs[-1] // groups, dys[0])


@register_flop_formula(torch.ops.lamina.circulant_product)
def _(
    x: Any, w: Any, bias: Any, block_size: int, out_channels: int, window: list[int], *, out_shape: Any, **_: Any
) -> int:
    y, xs, ws, *_ = out_shape
    sizes = Window.unpack(window)
    outputs = w[0] // sizes.taps
    p = outputs // sizes.groups
    rows = ((xs[1], xs[-1]), (ws[1], ws[-1]), (y[0] * y[2], outputs))
    return sum(_transform_flops(1, *row, block_size) for row in rows) + _mix_flops(window, p, ws[-1], ws[0])


@register_flop_formula(torch.ops.lamina.circulant_gradients)
def _(
    dy: Any, xs: Any, ws: Any, x_down: Any, w_down: Any, block_size: int, window: list[int],
    channels: int, channels_last: bool, for_x: bool, for_w: bool, **_: Any,
) -> int:  # fmt: skip
    sizes = Window.unpack(window)
    outputs = ws[1] // sizes.taps
    rows = [(dy[0] * dy[2], outputs), *[(xs[1], xs[-1])] * for_x, *[(ws[1], ws[-1])] * for_w]
    products = (for_x + for_w) * _mix_flops(window, outputs // sizes.groups, ws[-1], ws[0])
    return sum(_transform_flops(1, *row, block_size) for row in rows) + products

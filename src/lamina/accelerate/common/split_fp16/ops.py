"""The kernels of halves as PyTorch operators, and as functions that operators of cells call.

The functions take halves as they are laid down here: of rows ``[parts, rows, channels]``, of weights
``[parts, outputs, taps, inputs]``, each with the peaks that scale them, or None of a type that is narrow itself.
"""

from typing import Protocol

import torch
from torch import Tensor

from lamina.accelerate.common.split_fp16 import kernels
from lamina.accelerate.common.split_fp16.tiles import gradient_tile, product_tile, shares
from lamina.accelerate.common.tiling import between, power
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.triton_ops import INTERPRETED, early, index_type, reach
from lamina.accelerate.runtime.triton_utils import reciprocal

_BLOCK = 4096


def _peaks_like(x: Tensor) -> Tensor:
    return x.new_empty(_shares(x.numel()), dtype=torch.float32)


def _shares(numel: int) -> int:
    return between(1, power(-(-numel // _BLOCK)), kernels.SHARES)


def pair_peaks(
    x: Tensor, y: Tensor | None = None, /, *, misled: Tensor | None = None, every: int = 1
) -> tuple[Tensor, int, int]:
    """`peaks` of one tensor or two in one launch: those of both, and how many are of each.

    Tensors with gaps are copied.

    Args:
        x: float32.
        y: likewise.
        misled: ``[1]``, int32. Where not every block is looked at it is set to 0, for others to set should that have
            misled them; where every block is, nothing is done unless it was set.
        every: of so many blocks of ``x`` one is looked at.
    """
    x, x_numel = _adjacent(x)
    y, y_numel = (x, 0) if y is None else _adjacent(y)
    x_shares, y_shares = _shares(x_numel // every), _shares(y_numel) if y_numel else 0
    out = x.new_empty(x_shares + y_shares, dtype=torch.float32)
    many = max(x_numel // every, y_numel) > _BLOCK * kernels.SHARES  # read by more threads, not by more programs
    launch(
        kernels.pair_peaks_kernel, out.numel(), x,
        x, y, out, out if misled is None else misled, x_numel, y_numel, x_shares, y_shares,
        EVERY=every, AGAIN=misled is not None and every == 1,
        BLOCK=2 * _BLOCK if many else _BLOCK, INDEX=index_type(x, y), **early(x, y),
        num_warps=8 if many else 4,
    )  # fmt: skip
    return out, x_shares, y_shares


def _adjacent(x: Tensor) -> tuple[Tensor, int]:
    """``x``, copied where there are gaps between its elements, and how many different ones there are in memory."""
    size = reach(x)
    return (x, size) if 0 < size <= x.numel() else (x.contiguous(), x.numel())


def run_peaks(x: Tensor) -> Tensor:
    """The largest finite magnitudes, float32, of shares of ``x``, a power of two of them.

    Elements lie together, in any order. Kernels make the power of two of them: see `kernels.scale`.
    """
    out = _peaks_like(x)
    launch(kernels.peaks_kernel, out.numel(), x, x, out, x.numel(), BLOCK=_BLOCK, INDEX=index_type(x))
    return out


peaks = torch.library.custom_op("lamina::halves_peaks", run_peaks, mutates_args=())


@peaks.register_fake
def _(x: Tensor) -> Tensor:
    return _peaks_like(x)


def _split_like(x: Tensor, parts: int) -> Tensor:
    dtype = torch.float16 if x.dtype == torch.float32 else x.dtype
    return x.new_empty(parts, x.shape[0] * x.shape[2], x.shape[1], dtype=dtype)


def run_split(x: Tensor, peaks: Tensor | None, parts: int) -> Tensor:
    """The halves ``[parts, N*L, C]`` of ``x (N, C, L)`` of any strides, each row's channels together.

    float32 comes as float16 under the power of two that ``peaks`` make: the first part is it rounded, the second what
    that left. Narrower types have one part, themselves, and no ``peaks``. What is not finite is so in the first part.
    """
    out = _split_like(x, parts)
    (n, c, length), (stride_n, stride_c, stride_l) = x.shape, x.stride()
    if length == 1 or stride_n == length * stride_l:  # one long image
        n, length, stride_l = 1, n * length, stride_n // length
    high, wide = between(16, power(length), 64), between(16, power(c), 64)
    tiles_l, tiles_c = -(-length // high), -(-c // wide)
    launch(
        kernels.split_kernel, n * tiles_l * tiles_c, x,
        x, x if peaks is None else peaks, out, length, c, tiles_l, tiles_c, stride_n, stride_c, stride_l, x.numel(),
        PARTS=parts, SHARES=0 if peaks is None else peaks.numel(), TOP=kernels.TOP, BL=high, BC=wide,
        INDEX=index_type(x, out),
    )  # fmt: skip
    return out


split = torch.library.custom_op("lamina::halves_split", run_split, mutates_args=())


@split.register_fake
def _(x: Tensor, peaks: Tensor | None, parts: int) -> Tensor:
    return _split_like(x, parts)


class Window(Protocol):
    """What is asked of a convolution's window: the fields of the cells' own."""

    @property
    def height(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def out_height(self) -> int: ...
    @property
    def out_width(self) -> int: ...
    @property
    def taps(self) -> int: ...
    @property
    def kernel_width(self) -> int: ...
    @property
    def stride_height(self) -> int: ...
    @property
    def stride_width(self) -> int: ...
    @property
    def padding_height(self) -> int: ...
    @property
    def padding_width(self) -> int: ...
    @property
    def dilation_height(self) -> int: ...
    @property
    def dilation_width(self) -> int: ...
    @property
    def groups(self) -> int: ...


def steps(window: Window) -> dict[str, int]:
    """A window as kernels are told of it."""
    return {
        "GROUPS": window.groups, "TAPS": window.taps, "KW": window.kernel_width,
        "SH": window.stride_height, "SW": window.stride_width,
        "PH": window.padding_height, "PW": window.padding_width,
        "DH": window.dilation_height, "DW": window.dilation_width,
    }  # fmt: skip


def _scaled(peaks: Tensor | None) -> int:
    return 0 if peaks is None else peaks.numel()


def product(
    a: Tensor, a_peaks: Tensor | None, w: Tensor, w_peaks: Tensor | None, bias: Tensor | None, out: Tensor,
    window: Window, back: bool,
) -> None:  # fmt: skip
    """A convolution of halves into ``out (N, C, L)`` of any strides; ``back``, the gradient of its input."""
    (parts, rows_a, channels), (_, outputs, taps, inputs) = a.shape, w.shape
    rows, kept = out.shape[0] * out.shape[2], out.shape[1] // window.groups
    sizes = (window.out_height, window.out_width), (window.height, window.width)
    mine, its = sizes[::-1] if back else sizes
    summed = channels // window.groups
    tile = product_tile(rows, kept, summed, parts)
    tiles = -(-rows // tile.rows)
    launch(
        kernels.product_kernel, window.groups * tiles * -(-kept // tile.columns), a,
        a, w, out if bias is None else bias, out if a_peaks is None else a_peaks, out if w_peaks is None else w_peaks,
        out, rows, tiles, *mine, *its, *map(reciprocal, mine), rows_a * channels, outputs * taps * inputs,
        *out.stride(),
        SUMMED=summed, KEPT=kept, **steps(window), BACK=back, PARTS=parts,
        A_SHARES=_scaled(a_peaks), W_SHARES=_scaled(w_peaks), TOP=kernels.TOP, BIAS=bias is not None,
        LAST=out.stride(1) == 1,
        BM=tile.rows, BN=tile.columns, BK=tile.depth, UPCAST=INTERPRETED, INDEX=index_type(a, out),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def gradient(dy: Tensor, dy_peaks: Tensor | None, a: Tensor, a_peaks: Tensor | None, window: Window) -> Tensor:
    """The weight gradient ``(outputs, taps, inputs)``, float32, of a convolution of halves ``a``."""
    (parts, rows, channels), rows_a, inputs = dy.shape, a.shape[1], a.shape[2] // window.groups
    outputs, columns = channels // window.groups, window.taps * inputs
    tile = gradient_tile(rows, outputs, columns, parts)
    tiles = window.groups * -(-outputs // tile.rows) * -(-columns // tile.columns)
    deep = -(-rows // tile.depth)
    per_share = max(1, -(-deep // shares(tiles, deep, channels * columns, tile, parts))) * tile.depth
    number = max(1, -(-rows // per_share))
    out = dy.new_empty(number, channels, window.taps, inputs, dtype=torch.float32)
    mine, its = (window.out_height, window.out_width), (window.height, window.width)
    launch(
        kernels.gradient_kernel, tiles * number, dy,
        dy, a, out if dy_peaks is None else dy_peaks, out if a_peaks is None else a_peaks, out, rows, per_share,
        *mine, *its, *map(reciprocal, mine), rows * channels, rows_a * a.shape[2],
        OUTPUTS=outputs, INPUTS=inputs, **steps(window), PARTS=parts,
        DY_SHARES=_scaled(dy_peaks), A_SHARES=_scaled(a_peaks), TOP=kernels.TOP,
        BM=tile.rows, BN=tile.columns, BK=tile.depth, UPCAST=INTERPRETED, INDEX=index_type(dy, a, out),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out[0] if number == 1 else out.sum(0)

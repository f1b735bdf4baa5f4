"""The kernels of halves as PyTorch operators."""

import torch
from torch import Tensor

from lamina.accelerate.halves import kernels
from lamina.accelerate.ops import index_type, launch
from lamina.accelerate.tiling import between, power

_BLOCK = 4096


def _peaks_like(x: Tensor) -> Tensor:
    return x.new_empty(_shares(x.numel()), dtype=torch.float32)


def _shares(numel: int) -> int:
    return between(1, power(-(-numel // _BLOCK)), kernels.SHARES)


def pair_peaks(x: Tensor, y: Tensor | None = None, /, **early: bool) -> tuple[Tensor, int, int]:
    """`peaks` of finite numbers, of one tensor or two in one launch: those of both, and how many are of each.

    Tensors with gaps are copied. ``early`` says whether to launch before the kernel in front has ended.
    """
    x, x_numel = _adjacent(x)
    y, y_numel = (x, 0) if y is None else _adjacent(y)
    x_shares, y_shares = _shares(x_numel), _shares(y_numel) if y_numel else 0
    out = x.new_empty(x_shares + y_shares, dtype=torch.float32)
    many = max(x_numel, y_numel) > _BLOCK * kernels.SHARES  # read by more threads, not by more programs
    launch(
        kernels.pair_peaks_kernel, out.numel(), x, x, y, out, x_numel, y_numel, x_shares, y_shares,
        BLOCK=2 * _BLOCK if many else _BLOCK, INDEX=index_type(x, y), **early or {"EARLY": False},
        num_warps=8 if many else 4,
    )  # fmt: skip
    return out, x_shares, y_shares


def _adjacent(x: Tensor) -> tuple[Tensor, int]:
    """``x``, copied where there are gaps between its elements, and how many different ones there are in memory."""
    reach = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return (x, reach) if 0 < reach <= x.numel() else (x.contiguous(), x.numel())


@torch.library.custom_op("lamina::halves_peaks", mutates_args=())
def peaks(x: Tensor) -> Tensor:
    """The largest magnitudes, float32 of a power of two, of shares of ``x``, whose elements lie together in any order.

    Kernels make the power of two of them: see `kernels.scale`.
    """
    out = _peaks_like(x)
    launch(kernels.peaks_kernel, out.numel(), x, x, out, x.numel(), BLOCK=_BLOCK, INDEX=index_type(x))
    return out


@peaks.register_fake
def _(x: Tensor) -> Tensor:
    return _peaks_like(x)


def _split_like(x: Tensor, parts: int) -> Tensor:
    dtype = torch.float16 if x.dtype == torch.float32 else x.dtype
    return x.new_empty(parts, x.shape[0] * x.shape[2], x.shape[1], dtype=dtype)


@torch.library.custom_op("lamina::halves_split", mutates_args=())
def split(x: Tensor, peaks: Tensor | None, parts: int) -> Tensor:
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


@split.register_fake
def _(x: Tensor, peaks: Tensor | None, parts: int) -> Tensor:
    return _split_like(x, parts)

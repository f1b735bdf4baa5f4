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

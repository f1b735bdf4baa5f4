"""The kernels of halves as PyTorch operators."""

import torch
from torch import Tensor

from lamina.accelerate.halves import kernels
from lamina.accelerate.ops import index_type, launch
from lamina.accelerate.tiling import between, power

_BLOCK = 4096


def _peaks_like(x: Tensor) -> Tensor:
    return x.new_empty(between(1, power(-(-x.numel() // _BLOCK)), kernels.SHARES), dtype=torch.float32)


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

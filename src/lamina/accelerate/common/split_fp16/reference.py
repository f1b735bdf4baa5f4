"""The definition of split fp16 in plain PyTorch: scale by a power of two, round to float16, keep the rounding error."""

from __future__ import annotations

import torch
from torch import Tensor

TARGET_EXPONENT = 12
"""The amax is scaled to ``[2**TARGET_EXPONENT, 2**(TARGET_EXPONENT + 1))``."""


def scale(x: Tensor) -> Tensor:
    """The power of two that brings the largest finite magnitude to the target; 1 if no finite element is nonzero."""
    amax = torch.where(x.isfinite(), x.abs(), 0).amax().double()
    exponent = torch.frexp(amax).exponent.long() - 1
    power = (TARGET_EXPONENT - exponent + 1023 << 52).view(torch.float64)  # from its bits: pow is inexact on a GPU
    return torch.where(amax > 0, power, torch.ones_like(amax))


def split(x: Tensor, terms: int) -> Tensor:
    """The split ``[terms, N*L, C]`` of float32 ``x (N, C, L)``: hi, or hi and lo."""
    rows = (x.double() * scale(x)).float().mT.reshape(-1, x.shape[1])
    hi = rows.half()
    return torch.stack([hi, (rows - hi.float()).half()][:terms])

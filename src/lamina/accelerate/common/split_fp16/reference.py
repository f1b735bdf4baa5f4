"""The definition of halves in plain PyTorch: a power of two, what float16 keeps under it, and what that leaves."""

from __future__ import annotations

import torch
from torch import Tensor

TOP = 12
"""The largest number comes to lie in ``[2**TOP, 2**(TOP + 1))``."""


def scale(x: Tensor) -> Tensor:
    """The power of two that brings the largest finite number to the top; one where there is none but zero."""
    peak = torch.where(x.isfinite(), x.abs(), 0).amax().double()
    exponent = torch.frexp(peak).exponent.long() - 1
    power = (TOP - exponent + 1023 << 52).view(torch.float64)  # by its bits: a GPU rounds powers
    return torch.where(peak > 0, power, torch.ones_like(peak))


def split(x: Tensor, parts: int) -> Tensor:
    """The halves ``[parts, N*L, C]`` of float32 ``x (N, C, L)``."""
    rows = (x.double() * scale(x)).float().mT.reshape(-1, x.shape[1])
    high = rows.half()
    return torch.stack([high, (rows - high.float()).half()][:parts])

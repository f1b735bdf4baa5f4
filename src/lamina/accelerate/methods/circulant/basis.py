"""The packed real orthonormal Fourier basis: a block of ``k`` reals has a spectrum of ``k`` reals.

The spectrum of a real block is complex at frequencies ``0 < f < k/2``, and real at ``f = 0`` and, if ``k`` is even, at
``f = k/2``. *Slot* 0 holds these two real frequencies, slot ``f`` the real and imaginary part of frequency ``f``. All
``ceil(k/2)`` slots have the same size; for odd ``k``, the second element of slot 0 is zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def num_terms(spectrum: Tensor) -> int:
    """The fp16 terms of a spectrum: its leading dimension in ``[terms, F, ...]``, or 1 for ``[F, ...]``."""
    return spectrum.shape[0] if spectrum.dim() == 5 else 1


def slot_count(block_size: int) -> int:
    """The number of frequency slots of a block, and so of independent matmuls in the frequency domain."""
    return (block_size + 1) // 2


def growth(block_size: int, eigenvalues: bool) -> int:
    """A bound of the growth of the amax by the transform, as a binary exponent."""
    bits = (block_size - 1).bit_length()
    return bits if eigenvalues else (bits + 1) // 2


def basis(
    block_size: int, *, eigenvalues: bool = False, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Tensor:
    """The transform as a matrix, ``(2 * slots, block_size)``: all real parts, then all imaginary parts.

    Its rows are orthonormal, so its transpose is its inverse. With ``eigenvalues``, the rows are scaled so that the
    transform of the first column of a circulant block gives its eigenvalues, in the same packing.
    """
    slots = slot_count(block_size)
    time = torch.arange(block_size, dtype=torch.float64, device=device)
    angle = time * (2 * math.pi / block_size) * torch.arange(slots, dtype=torch.float64, device=device)[:, None]
    real, imaginary = angle.cos(), -angle.sin()
    if block_size % 2 == 0:
        nyquist = 1 - 2 * (time % 2)
        imaginary = torch.cat([nyquist[None], imaginary[1:]])
    matrix = torch.stack([real, imaginary])
    if not eigenvalues:
        components = 1 + (torch.arange(slots, device=device)[:, None] > 0).double()
        matrix = matrix * (components / block_size).sqrt()
    return matrix.flatten(0, 1).to(dtype)

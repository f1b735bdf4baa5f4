"""The packed real orthonormal Fourier basis: ``k`` reals a block, no complex numbers.

Frequency ``f`` of a real block of ``k`` is a complex number for ``0 < f < k/2`` and a real one for ``f = 0`` and, when
``k`` is even, for ``f = k/2``. *Slot* 0 holds those two real ones side by side, slot ``f`` the real and imaginary
part of frequency ``f``. So there are ``ceil(k/2)`` equal slots; an odd ``k`` leaves the second half of slot 0 zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def num_terms(spectrum: Tensor) -> int:
    """Halves that each number of a spectrum is kept as: ``[parts, F, ...]``, or only ``[F, ...]`` of one."""
    return spectrum.shape[0] if spectrum.dim() == 5 else 1


def slot_count(block_size: int) -> int:
    """Slots of a block: how many independent products the frequency domain has."""
    return (block_size + 1) // 2


def growth(block_size: int, eigenvalues: bool) -> int:
    """Binary digits that a spectrum's largest number can be longer by than the largest of what was transformed."""
    digits = (block_size - 1).bit_length()
    return digits if eigenvalues else (digits + 1) // 2


def basis(
    block_size: int, *, eigenvalues: bool = False, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Tensor:
    """The transform as a matrix, ``(2 * slots, block_size)``: all real parts, then all imaginary parts.

    Its rows are orthonormal, so its transpose is its inverse. With ``eigenvalues`` the rows are scaled such that a
    block's first column becomes the eigenvalues of the block, in the same packing.
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
        parts = 1 + (torch.arange(slots, device=device)[:, None] > 0).double()
        matrix = matrix * (parts / block_size).sqrt()
    return matrix.flatten(0, 1).to(dtype)

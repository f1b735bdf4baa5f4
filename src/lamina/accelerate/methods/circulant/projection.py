"""The projection of dense weights onto block-circulant ones, and the energy that it keeps.

The block-circulant matrix nearest to a dense one in the Frobenius norm has the mean of each wrapped diagonal of each
block. Weighting the mean by squared gradients minimizes the loss increase to second order instead (Xu et al.,
"PrivCirNet", NeurIPS 2024, section 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.methods.circulant.config import check_block_size
from lamina.errors import UsageError


@dataclass(frozen=True)
class Projection:
    """Blocks ``(p, *kernel, q, k)``, and their fraction of the squared Frobenius norm of the dense weights."""

    weight: Tensor
    kept_energy: float


def project(
    dense: Tensor, block_size: int, *, groups: int = 1, rescale: bool = False, importance: Tensor | None = None
) -> Projection:
    """The nearest block-circulant weight to ``dense (out, in / groups, *kernel)``.

    Args:
        dense: finite weights of a linear layer or a convolution.
        block_size: ``k``.
        groups: of the convolution.
        rescale: scale to the norm of ``dense``. The mean of ``k`` uncorrelated elements has a ``sqrt(k)`` smaller norm.
        importance: nonnegative weights of the mean, of the shape of ``dense``, such as squared gradients.

    Raises:
        UsageError: the weights are not finite, or shapes do not match.
    """
    check_block_size(block_size)
    exact = dense.detach().double()
    if not exact.isfinite().all():
        bad = int((~exact.isfinite()).sum())
        raise UsageError(f"weights: expected finite values, got {bad} that are not; repair the model first")
    weighting = torch.ones_like(exact) if importance is None else importance.detach().double()
    if weighting.shape != exact.shape or not bool((weighting >= 0).all()):
        raise UsageError(
            f"importance: expected values >= 0 of shape {tuple(exact.shape)}, got {tuple(weighting.shape)}"
        )
    sums, weights = (diagonal_sums(values, block_size, groups) for values in (exact * weighting, weighting))
    plain = diagonal_sums(exact, block_size, groups) if importance is not None else sums
    counts = coverage(exact, block_size, groups)
    mean = torch.where(weights > 0, sums / weights, plain / counts.clamp(min=1))
    kept = float((mean.square() * counts).sum() / exact.square().sum()) if exact.any() else 1.0
    if rescale and kept > 0:
        mean = mean * kept**-0.5
    return Projection(mean.to(dense.dtype), kept)


def coverage(dense: Tensor, block_size: int, groups: int = 1) -> Tensor:
    """The elements of ``dense`` that each element of the blocks represents: ``k``, fewer in partial blocks."""
    return diagonal_sums(torch.ones_like(dense), block_size, groups)


def diagonal_sums(dense: Tensor, block_size: int, groups: int = 1) -> Tensor:
    """The sums of the wrapped diagonals of each block: ``(out, in / groups, *kernel)`` to ``(p, *kernel, q, k)``."""
    k = block_size
    rows = dense.unflatten(0, (groups, -1)).movedim(2, -1)  # (groups, rows, *kernel, columns)
    missing = -rows.shape[1] % k, -rows.shape[-1] % k
    rows = F.pad(rows.movedim(1, -2), (0, missing[1], 0, missing[0]))  # (groups, *kernel, p k, q k)
    blocks = rows.unflatten(-1, (-1, k)).unflatten(-3, (-1, k))  # (groups, *kernel, p, k, q, k)
    time = torch.arange(k, device=dense.device)
    shifted = blocks.transpose(-3, -2)[..., (time[:, None] + time) % k, time]  # (..., p, q, offset, column)
    sums: Tensor = shifted.sum(-1).movedim(-3, 1).flatten(0, 1)
    return sums

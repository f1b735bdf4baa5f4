"""The pass over an activation map in PyTorch's own operators, on any device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.training.sparsity_monitor.observation import WIDTHS, WORDS
from lamina.errors import UsageError


def as_matrices(x: Tensor, channels: int = 1) -> Tensor:
    """A map as ``(images, channels, pixels)``, a view of it where its strides allow.

    Args:
        x: any shape; of fewer than two axes it is one channel.
        channels: the axis of channels: 1 for images, -1 for tokens.

    Raises:
        UsageError: there is no such axis.
    """
    if x.ndim < 2:
        return x.reshape(1, 1, -1)
    if not 1 <= channels % x.ndim <= x.ndim - 1 or not -x.ndim <= channels < x.ndim:
        raise UsageError(f"monitor: expected channels on an axis after the first, got axis {channels} of {[*x.shape]}")
    moved = x.movedim(channels, 1)
    return moved.reshape(*moved.shape[:2], moved.shape[2:].numel())


def count(matrices: Tensor) -> Tensor:
    """The counts of a pass, int64 ``(WORDS,)``, over a map ``(images, channels, pixels)``."""
    images, rows, pixels = matrices.shape
    if not matrices.numel():
        return torch.zeros(WORDS, dtype=torch.int64, device=matrices.device)
    nonzero = (matrices != 0).movedim(1, 0).reshape(rows, images * pixels)
    counts = [nonzero.sum(), nonzero.any(1).sum(), nonzero.sum(0).max()]
    for width in WIDTHS:
        padded = F.pad(nonzero, (0, -nonzero.shape[1] % width))
        counts.append(padded.reshape(rows, -1, width).any(-1).sum())
    return torch.stack(counts)

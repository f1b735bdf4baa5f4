"""Moments of the windows of a convolution, without unfolding both axes.

A product of two rows of a kernel is a sum of ``z[q] z[q + d]^T`` over rows ``q`` of an image that is unfolded along its
width only; ``d`` is the distance of the kernel's rows. Sums for the same ``d`` differ in a few rows at the border. So
the image is cut there, and the sum of each part is computed once: 3 large products in place of 9 for a kernel of 3x3,
since that of ``-d`` is the transpose.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

Sizes = tuple[int, int]

MAX_ELEMENTS = 1 << 25
"""Elements of one unfolded part in memory."""


def parts(x: Tensor, elements: int) -> tuple[Tensor, ...]:
    """The samples of ``x`` in parts, for work on ``elements`` elements of each sample."""
    split: tuple[Tensor, ...] = x.split(max(1, MAX_ELEMENTS // elements))
    return split


def window_moments(x: Tensor, kernel: Sizes, dilation: Sizes) -> tuple[int, Tensor, Tensor]:
    """The number of windows, and the sums of their elements ``(K,)`` and products ``(K, K)``, in float64.

    Args:
        x: ``(N, C, H, W)``, padded. ``K`` is ``C`` times the taps, channels outermost. The stride is 1.
        kernel: its size along each spatial axis.
        dilation: along each spatial axis.
    """
    (_, channels, height, width), (rows, columns) = x.shape, kernel
    high, wide = height - dilation[0] * (rows - 1), width - dilation[1] * (columns - 1)
    starts = [row * dilation[0] for row in range(rows)]
    total = x.new_zeros(rows, columns * channels, dtype=torch.float64)
    products = x.new_zeros(rows, rows, columns * channels, columns * channels, dtype=torch.float64)
    for part in parts(x, columns * channels * height * wide):
        shifted = torch.cat([part[..., column * dilation[1] :][..., :wide] for column in range(columns)], 1)
        lines = shifted.permute(2, 0, 3, 1).to(torch.float64, memory_format=torch.contiguous_format).flatten(1, 2)
        for start, sums in zip(starts, total, strict=True):
            sums += lines[start : start + high].sum((0, 1))
        for distance in range(rows):
            firsts = starts[: rows - distance]
            cuts = sorted({edge for start in firsts for edge in (start, start + high)})
            for top, bottom in pairwise(cuts):
                inside = [row for row, start in enumerate(firsts) if start <= top and bottom <= start + high]
                if not inside:
                    continue
                down = starts[distance]
                summed = lines[top:bottom].flatten(0, 1).mT @ lines[top + down : bottom + down].flatten(0, 1)
                for row in inside:
                    products[row, row + distance] += summed
    for row in range(rows):
        for other in range(row):
            products[row, other] = products[other, row].mT
    inputs = channels * rows * columns
    by_channel = products.unflatten(3, (columns, channels)).unflatten(2, (columns, channels)).permute(3, 0, 2, 5, 1, 4)
    return (
        len(x) * high * wide,
        total.unflatten(1, (columns, channels)).permute(2, 0, 1).flatten(),
        by_channel.reshape(inputs, inputs),
    )

"""Batches of an epoch. Their order depends only on seed and epoch, so that an interrupted run can resume."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.build.data.batch import samples
from lamina.build.data.dataset import Dataset, kind_of
from lamina.errors import UsageError

_PADDING = 4


def steps(items: int, batch: int, world_size: int = 1) -> int:
    """Batches per epoch on each rank."""
    return ceil(ceil(items / world_size) / batch)


def loader(
    dataset: Dataset,
    shape: Sequence[int] | None,
    batch: int,
    seed: int,
    epoch: int,
    *,
    shuffle: bool = True,
    augment: bool = False,
    cutout: int = 0,
    rank: int = 0,
    world_size: int = 1,
    start: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches ``(x, y)`` of one epoch for one rank, starting at batch index ``start``; the last may be smaller.

    Samples are assigned to ranks round-robin: the batches of all ranks at one step are those of one process with
    ``world_size * batch``. If the number of samples is not divisible, the first ones are repeated, so that every rank
    has the same number. ``augment`` shifts images by up to 4 pixels, padded with the mean color, and flips half of them
    horizontally. ``cutout`` is the side of a square around any pixel that is filled with the mean color (DeVries,
    Taylor, arXiv:1708.04552). What is done to a sample depends on seed and epoch, not on rank or batch.

    Raises:
        UsageError: invalid values, samples that cannot have the shape, or augmentation of anything but
            images. Raised at the call, not at the first batch.
    """
    if batch < 1 or start < 0 or epoch < 0 or seed < 0 or not 0 <= rank < world_size:
        raise UsageError(
            "expected batch >= 1, start, epoch and seed >= 0, and 0 <= rank < world_size; got "
            f"batch={batch}, start={start}, epoch={epoch}, seed={seed}, rank={rank}, world_size={world_size}"
        )
    shape = dataset.shape if shape is None else tuple(shape)
    if cutout < 0:
        raise UsageError(f"expected cutout >= 0, got {cutout}")
    if (augment or cutout) and kind_of(shape) != "image":
        raise UsageError(
            f"{dataset.name}: expected images to augment, got {dataset.kind}; pass augment=False and cutout=0"
        )
    samples(dataset, torch.zeros(1, dtype=torch.int64), shape)

    rng = np.random.default_rng((seed, epoch))
    order = rng.permutation(len(dataset)) if shuffle else np.arange(len(dataset))
    shifts = torch.from_numpy(rng.integers(2 * _PADDING + 1, size=(len(dataset), 2)))
    mirrored = torch.from_numpy(rng.integers(2, size=len(dataset)).astype(bool))
    centers = torch.from_numpy(rng.integers(shape[1:], size=(len(dataset), 2))) if cutout else None
    mine = torch.from_numpy(np.resize(order, ceil(len(dataset) / world_size) * world_size)[rank::world_size])

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for at in range(start * batch, len(mine), batch):
            indices = mine[at : at + batch]
            x, y = samples(dataset, indices, shape)
            x = _jitter(x, shifts[indices], mirrored[indices]) if augment else x
            yield (x if centers is None else _cut_out(x, centers[indices], cutout)), y

    return batches()


def _jitter(x: Tensor, shifts: Tensor, mirrored: Tensor) -> Tensor:
    items, channels, height, width = x.shape
    rows = shifts[:, :1] + torch.arange(height)
    columns = shifts[:, 1:] + torch.arange(width)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    padded = F.pad(x, (_PADDING,) * 4)
    item, channel = torch.arange(items)[:, None, None, None], torch.arange(channels)[None, :, None, None]
    return padded[item, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _cut_out(x: Tensor, centers: Tensor, side: int) -> Tensor:
    """Images without the part of a square that is inside them; the mean color is zero."""
    rows, columns = (
        (place := torch.arange(size, device=x.device) - centers[:, axis, None].to(x.device) + side // 2).ge(0)
        & place.lt(side)
        for axis, size in enumerate(x.shape[2:])
    )
    return x.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0)

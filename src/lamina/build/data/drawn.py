"""Synthetic data of any inputs: several, nested, complex or integer ones, drawn a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from zlib import crc32

from torch import Tensor

from lamina.build.data.dataset import Dataset
from lamina.build.data.loader import loader, steps
from lamina.errors import UsageError


@dataclass(frozen=True)
class Drawn:
    """One split of random samples.

    ``draw`` gives the inputs and labels of a batch from its size and a seed. A batch depends on the split, its index
    and its size, so that every epoch has the same batches in the same order.
    """

    draw: Callable[[int, int], tuple[tuple[Tensor, ...], Tensor]]
    split: str
    items: int
    classes: tuple[str, ...]
    name: str = "synthetic"

    def __len__(self) -> int:
        return self.items

    def part(self, split: str, items: int) -> Drawn:
        """Other samples, as many as ``items``."""
        return replace(self, split=split, items=items)

    def batch(self, size: int, index: int = 0) -> tuple[tuple[Tensor, ...], Tensor]:
        """The batch at an index."""
        return self.draw(size, crc32(f"{self.split} {index}".encode()))

    def batches(
        self, batch: int, *, rank: int = 0, world_size: int = 1, start: int = 0
    ) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        """Every batch from ``start`` on; the last may be smaller."""
        mine = ceil(self.items / world_size)
        for index in range(start, steps(self.items, batch, world_size)):
            yield self.batch(min(batch, mine - index * batch), index * world_size + rank)


Data = Dataset | Drawn


def batches(
    data: Data,
    shape: Sequence[int],
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
) -> Iterator[tuple[Tensor | tuple[Tensor, ...], Tensor]]:
    """Batches of an epoch, as `loader` gives them; those of drawn samples hold a tuple of inputs.

    Raises:
        UsageError: as `loader`, or drawn samples are to be augmented.
    """
    if not isinstance(data, Drawn):
        return loader(
            data, shape, batch, seed, epoch,
            shuffle=shuffle, augment=augment, cutout=cutout, rank=rank, world_size=world_size, start=start,
        )  # fmt: skip
    if augment or cutout:
        raise UsageError("synthetic: expected images to augment, got random inputs; leave out --augment and --cutout")
    return data.batches(batch, rank=rank, world_size=world_size, start=start)

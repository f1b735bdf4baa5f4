"""Data in three parts: to learn from, to choose by, and to test what was chosen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn

from lamina.build import DTYPES
from lamina.build.data import Dataset, loader, train_test
from lamina.errors import UsageError

ELEMENTS = 1 << 22
"""Of the inputs of one batch, whose activations are some hundred times as many."""

RESIDENT = 1 << 32
"""Bytes of samples, as they are stored, that the device holds; more stay in the host's memory."""

LARGEST_SHARE = 0.2
"""Of the training samples that calibration may take."""


@dataclass(frozen=True)
class Material:
    """Samples to learn from, to calibrate and choose by, and to test on; ``shape`` is what the network reads."""

    learn: Dataset
    calibration: Dataset
    test: Dataset
    shape: tuple[int, ...]

    @property
    def classes(self) -> int:
        """How many there are."""
        return len(self.learn.classes)

    def batches(self, batch: int, seed: int, epoch: int, start: int = 0, augment: bool = False) -> Iterator[Pair]:
        """To learn from."""
        return loader(self.learn, self.shape, batch, seed, epoch, augment=augment, start=start)

    def ordered(self, part: Dataset, batch: int | None = None) -> Iterator[Pair]:
        """One of the other parts, in its order; in batches of a size that activations leave room for, if left out."""
        return loader(part, self.shape, batch or self.room(), 0, 0, shuffle=False)

    def room(self, elements: int = ELEMENTS) -> int:
        """How many samples to take at once so that their inputs have so many elements, or 256."""
        return max(1, min(256, elements // prod(self.shape)))


Pair = tuple[Tensor, Tensor]


def material(
    data: str, shape: tuple[int, ...], calibration: int, seed: int, device: torch.device | None = None
) -> Material:
    """Set some training samples, drawn by ``seed``, apart from what is learned from; all of them on ``device``.

    Raises:
        UsageError: as `train_test`, or there are too few samples to set any apart.
    """
    train, test = (_placed(part, device) for part in train_test(data))
    number = min(calibration, int(LARGEST_SHARE * len(train)))
    if number < 1:
        raise UsageError(
            f"{data}: expected training samples of which {LARGEST_SHARE:.0%} can be set apart, got {len(train)}"
        )
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    return Material(_part(train, order[number:]), _part(train, order[:number]), test, shape)


def _placed(dataset: Dataset, device: torch.device | None) -> Dataset:
    if device is None or dataset.x.nbytes > RESIDENT:
        return dataset
    return replace(dataset, x=dataset.x.to(device), y=dataset.y.to(device))


def _part(dataset: Dataset, places: Tensor) -> Dataset:
    return replace(dataset, x=dataset.x[places], y=dataset.y[places])


@torch.no_grad()
def accuracy(model: nn.Module, batches: Iterable[Pair], device: torch.device, precision: str = "fp32") -> float:
    """In percent, of a model in evaluation mode on that device.

    Raises:
        UsageError: there is no sample.
    """
    hits = torch.zeros((), dtype=torch.int64, device=device)
    total = 0
    for x, y in batches:
        scores = model(placed(x, device, precision))
        hits += (scores.argmax(-1) == y.to(device)).sum()
        total += y.numel()
    if not total:
        raise UsageError("accuracy: expected at least one sample, got none")
    return 100 * int(hits) / total


def placed(x: Tensor, device: torch.device, precision: str) -> Tensor:
    """An input on the device, real numbers in the precision's type."""
    return x.to(device, DTYPES[precision]) if x.is_floating_point() else x.to(device)

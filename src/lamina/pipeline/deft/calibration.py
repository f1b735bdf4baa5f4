"""Data in three splits: training, calibration and test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn

from lamina.build import DTYPES
from lamina.build.data import Dataset, loader, train_test
from lamina.errors import UsageError
from lamina.run import class_scores

ELEMENTS = 1 << 22
"""Elements of the inputs of one batch; activations are about a hundred times as many."""

RESIDENT = 1 << 32
"""Bytes of samples that are kept on the device; larger data stay in host memory."""

MAX_CALIBRATION = 0.2
"""The largest fraction of the training samples that is used for calibration."""


@dataclass(frozen=True)
class Material:
    """Samples for training, calibration and tests; ``shape`` is that of the network's input."""

    learn: Dataset
    calibration: Dataset
    test: Dataset
    shape: tuple[int, ...]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.learn.classes)

    def batches(self, batch: int, seed: int, epoch: int, start: int = 0, augment: bool = False) -> Iterator[Pair]:
        """Training batches."""
        return loader(self.learn, self.shape, batch, seed, epoch, augment=augment, start=start)

    def ordered(self, part: Dataset, batch: int | None = None) -> Iterator[Pair]:
        """Another split, in order; by default in batches that fit into memory."""
        return loader(part, self.shape, batch or self.batch_size(), 0, 0, shuffle=False)

    def batch_size(self, elements: int = ELEMENTS) -> int:
        """Batch size whose inputs have at most this many elements; at most 256."""
        return max(1, min(256, elements // prod(self.shape)))


Pair = tuple[Tensor, Tensor]


def material(
    data: str,
    shape: tuple[int, ...],
    calibration: int,
    seed: int,
    device: torch.device | None = None,
    load: Callable[[str], tuple[Dataset, Dataset]] = train_test,
) -> Material:
    """Load data and set training samples, drawn by ``seed``, apart for calibration; all on ``device``.

    ``load`` gives the train and test splits.

    Raises:
        UsageError: as `train_test`, or there are too few samples to set any apart.
    """
    train, test = (_placed(part, device) for part in load(data))
    number = min(calibration, int(MAX_CALIBRATION * len(train)))
    if number < 1:
        raise UsageError(
            f"{data}: expected training samples of which {MAX_CALIBRATION:.0%} can be set apart, got {len(train)}"
        )
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    return Material(_part(train, order[number:]), _part(train, order[:number]), test, shape)


def _placed(dataset: Dataset, device: torch.device | None) -> Dataset:
    if device is None or dataset.x.nbytes > RESIDENT:
        return dataset
    return replace(dataset, x=dataset.x.to(device), y=dataset.y.to(device))


def _part(dataset: Dataset, index: Tensor) -> Dataset:
    return replace(dataset, x=dataset.x[index], y=dataset.y[index])


@torch.no_grad()
def accuracy(model: nn.Module, batches: Iterable[Pair], device: torch.device, precision: str = "fp32") -> float:
    """Accuracy in percent of a model in evaluation mode on the device.

    Raises:
        UsageError: there is no sample.
    """
    hits = torch.zeros((), dtype=torch.int64, device=device)
    total = 0
    for x, y in batches:
        outputs, labels = model(placed(x, device, precision)), y.to(device)
        scores = class_scores(outputs, labels)
        if scores is None:
            raise UsageError(f"accuracy: expected class scores {(*y.shape, 'C')} among the outputs, got none")
        hits += (scores.argmax(-1) == labels).sum()
        total += y.numel()
    if not total:
        raise UsageError("accuracy: expected at least one sample, got none")
    return 100 * int(hits) / total


def placed(x: Tensor, device: torch.device, precision: str) -> Tensor:
    """An input on the device; floating point in the precision's dtype."""
    return x.to(device, DTYPES[precision]) if x.is_floating_point() else x.to(device)

"""Data in three splits: training, calibration and test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from math import prod

import torch
from torch import Tensor, nn

from lamina.build import DTYPES
from lamina.build.data import Data, Dataset, Drawn, batches, train_test
from lamina.errors import UsageError
from lamina.run import Inputs, class_scores, forward, moved

ELEMENTS = 1 << 22
"""Elements of the inputs of one batch; activations are about a hundred times as many."""

RESIDENT = 1 << 32
"""Bytes of samples that are kept on the device; larger data stay in host memory."""

MAX_CALIBRATION = 0.2
"""The largest fraction of the training samples that is used for calibration."""


@dataclass(frozen=True)
class Material:
    """Samples for training, calibration and tests; ``shape`` is that of the network's largest input."""

    learn: Data
    calibration: Data
    test: Data
    shape: tuple[int, ...]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.learn.classes)

    def batches(
        self, batch: int, seed: int, epoch: int, start: int = 0, augment: bool = False, cutout: int = 0
    ) -> Iterator[Pair]:
        """Training batches."""
        return batches(self.learn, self.shape, batch, seed, epoch, augment=augment, cutout=cutout, start=start)

    def ordered(self, part: Data, batch: int | None = None) -> Iterator[Pair]:
        """Another split, in order; by default in batches that fit into memory."""
        return batches(part, self.shape, batch or self.batch_size(), 0, 0, shuffle=False)

    def fitting(self, batch: int) -> Iterator[Pair]:
        """Training samples to fit weights on, as many as there are calibration samples, which judge the fit."""
        return islice(self.ordered(self.learn, batch), -(-len(self.calibration) // batch))

    def example(self, batch: int) -> Inputs:
        """One batch of calibration inputs, repeated from the first one if there are too few."""
        if isinstance(self.calibration, Drawn):
            return self.calibration.batch(batch)[0]
        x = next(iter(self.ordered(self.calibration, batch)))[0]
        assert isinstance(x, Tensor)
        return x[torch.arange(batch) % len(x)]

    def batch_size(self, elements: int = ELEMENTS) -> int:
        """Batch size whose inputs have at most this many elements; at most 256."""
        return max(1, min(256, elements // prod(self.shape)))


Pair = tuple[Inputs, Tensor]


def material(
    data: str,
    shape: tuple[int, ...],
    calibration: int,
    seed: int,
    device: torch.device | None = None,
    load: Callable[[str], tuple[Data, Data]] = train_test,
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
    if isinstance(train, Drawn):
        return Material(train.part("train", len(train) - number), train.part("calibration", number), test, shape)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    return Material(_part(train, order[number:]), _part(train, order[:number]), test, shape)


def _placed(dataset: Data, device: torch.device | None) -> Data:
    if device is None or isinstance(dataset, Drawn) or dataset.x.nbytes > RESIDENT:
        return dataset
    return replace(dataset, x=dataset.x.to(device), y=dataset.y.to(device))


def _part(dataset: Dataset, index: Tensor) -> Dataset:
    return replace(dataset, x=dataset.x[index], y=dataset.y[index])


def accuracy(
    model: nn.Module,
    batches: Iterable[Pair],
    device: torch.device,
    precision: str = "fp32",
    classes: int | None = None,
) -> float:
    """Accuracy in percent of a model in evaluation mode on the device, the mean of its `hits`.

    Raises:
        UsageError: there is no sample, or there are no class scores among the outputs.
    """
    return percent(hits(model, batches, device, precision, classes))


def percent(fractions: Tensor) -> float:
    """The mean of fractions in percent: of `hits`, the accuracy."""
    return 100 * float(fractions.sum()) / len(fractions)


@torch.no_grad()
def hits(
    model: nn.Module,
    batches: Iterable[Pair],
    device: torch.device,
    precision: str = "fp32",
    classes: int | None = None,
) -> Tensor:
    """Of each sample, the fraction of its labels that a model in evaluation mode predicts; on the host, in float64.

    ``classes`` is as in `class_scores`.

    Raises:
        UsageError: there is no sample, or there are no class scores among the outputs.
    """
    found = []
    for x, y in batches:
        outputs, labels = forward(model, placed(x, device, precision)), y.to(device)
        scores = class_scores(outputs, labels, classes)
        if scores is None:
            raise UsageError(f"accuracy: expected class scores {(*y.shape, 'C')} among the outputs, got none")
        right = (scores.argmax(-1) == labels).float()
        found.append(right.unsqueeze(-1).flatten(1).mean(1))
    if not sum(map(len, found)):
        raise UsageError("accuracy: expected at least one sample, got none")
    return torch.cat(found).cpu().double()


def placed(x: Inputs, device: torch.device, precision: str) -> Inputs:
    """Inputs on the device; floating point in the precision's dtype."""
    return moved(x, device, DTYPES[precision])

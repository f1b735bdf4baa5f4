"""Accuracy of LeNet-5 after synapse vector elimination, beside its multiplications: figures 14 and 15."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate.methods.elimination.pareto import Choice, Point, choose, search
from lamina.build.data import Dataset, loader, train_test
from lamina.build.models import create
from lamina.pipeline.deft.pairs import Pairs
from lamina.pipeline.deft.pruning import CHANNELS, DENSE, ITERATIVE, MAGNITUDE, installed, multiplications, tuned
from lamina.pipeline.reproduce.measured.judging import Rows, Scope

THRESHOLDS = (0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""Correlations from which on one synapse vector represents another."""
LAYERS = ("features.3", "classifier.0", "classifier.2", "classifier.4")
"""All but the first, whose input is the image."""
TRAINED, CHOSEN, TESTED = 3000, 1000, 1000
"""Samples to train on, to search with, and to report the accuracy on."""
SHAPE = (1, 28, 28)
BATCH = 64
RATE, TUNING_RATE = 2e-3, 5e-4
COMPARED = (MAGNITUDE, ITERATIVE, DENSE, CHANNELS)
LOSS = 5.0
"""Points of accuracy that figure 15's users tolerate."""


class LeNet:
    """A trained network with its data."""

    def __init__(self, scope: Scope) -> None:
        train, test = train_test("fashion-mnist")
        self.device = scope.device
        self.epochs, self.tuning = (4, 1) if scope.quick else (20, 5)
        self.train = _part(train, 0, TRAINED)
        self.chosen = self._whole(_part(train, TRAINED, CHOSEN))
        self.tested = self._whole(_part(test, 0, TESTED))
        torch.manual_seed(0)
        self.network = create("lenet5", len(train.classes)).to(self.device)
        self._learn(self.network, self.epochs, RATE)

    def tune(self, network: nn.Module, epochs: int | None = None) -> None:
        """Fine-tune what requires gradients."""
        self._learn(network, self.tuning if epochs is None else epochs, TUNING_RATE)

    def accuracy(self, network: nn.Module, samples: tuple[Tensor, Tensor]) -> float:
        """In percent."""
        x, y = samples
        with torch.no_grad():
            return 100 * float((network.eval()(x).argmax(1) == y).float().mean())

    def work(self, network: nn.Module) -> int:
        """Multiplications of an inference of one sample."""
        return multiplications(network, self.tested[0][:1])

    def _learn(self, network: nn.Module, epochs: int, rate: float) -> None:
        network.train()
        optimizer = torch.optim.Adam([one for one in network.parameters() if one.requires_grad], rate)
        each = (loader(self.train, SHAPE, BATCH, 0, epoch) for epoch in range(epochs))
        for x, y in chain.from_iterable(each):
            optimizer.zero_grad()
            F.cross_entropy(network(x.to(self.device)), y.to(self.device)).backward()
            optimizer.step()
        network.eval()

    def _whole(self, data: Dataset) -> tuple[Tensor, Tensor]:
        x, y = next(iter(loader(data, SHAPE, len(data.y), 0, 0, shuffle=False)))
        return x.to(self.device), y.to(self.device)


def front(scope: Scope) -> Rows:
    """Every point of the front, the dense network, and others of the size of the smallest point within ``LOSS``.

    ``accuracy`` in percent is on test samples, ``chosen_accuracy`` on those of the search; ``reduction`` is the dense
    network's multiplications over a point's. Each network is under ``network`` too.
    """
    lenet = LeNet(scope)
    pairs = Pairs(lenet.network, dict.fromkeys(LAYERS, THRESHOLDS), lenet.tune)
    pairs.build()
    dense = lenet.work(lenet.network)

    def accuracy(choice: Choice) -> float:
        return lenet.accuracy(pairs.network(choice), lenet.chosen)

    found = search(
        dict.fromkeys(LAYERS, THRESHOLDS), accuracy, lambda choice: lenet.work(pairs.network(choice)) / dense
    )
    ours = pairs.network(choose(found.front, found.dense, max_accuracy_drop=LOSS).choice)
    return [
        *(_row(lenet, "eliminated", pairs.network(point.choice), dense, point) for point in found.front),
        *_others(lenet, ours, dense),
    ]


def _others(lenet: LeNet, ours: nn.Module, dense: int) -> Iterator[dict[str, Any]]:
    """The dense network, also tuned as long; with as few weights as ours, pruned by magnitude at once and in steps; and
    with channels pruned to as many multiplications, where the package for that is installed."""
    yield _row(lenet, "dense", copy.deepcopy(lenet.network), dense)
    for name in installed(*COMPARED):
        network = tuned(name, lenet.network, lenet.tested[0][:1], ours, lenet.tune, lenet.tuning)
        yield _row(lenet, f"{name}-tuned", network, dense)


def _row(lenet: LeNet, impl: str, network: nn.Module, dense: int, point: Point | None = None) -> dict[str, Any]:
    weights = sum(int(one.count_nonzero()) for one in network.parameters() if one.dim() > 1)
    return {
        "impl": impl, "thresholds": point.choice if point else {}, "accuracy": lenet.accuracy(network, lenet.tested),
        "chosen_accuracy": lenet.accuracy(network, lenet.chosen), "reduction": dense / lenet.work(network),
        "weights": weights, "network": network,
    }  # fmt: skip


def _part(data: Dataset, first: int, count: int) -> Dataset:
    return replace(data, x=data.x[first : first + count], y=data.y[first : first + count])

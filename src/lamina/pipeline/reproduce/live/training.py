"""Networks that are trained dense and with circulant blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lamina import run
from lamina.accelerate import convert
from lamina.accelerate.methods.circulant import Circulant
from lamina.build.data import Dataset, loader, steps, train_test
from lamina.build.models import create
from lamina.pipeline.reproduce.measured.accuracy import PAPERS
from lamina.pipeline.reproduce.measured.judging import Rows, Scope
from lamina.spec.training import Training

SHAPES = {"conv4fc3": (3, 32, 32), "lenet5": (1, 28, 28)}
NAMES = {"conv4fc3": PAPERS, "lenet5": "lenet5 fashion-mnist"}
"""The name of each network's runs; the network of figure 7.12 is compared on the data that are at hand."""


def accuracy(scope: Scope) -> Rows:
    """Figures 7.12 and 7.13: LeNet-5 and the network of figure 7.12 on Fashion-MNIST, dense and by block size."""
    blocks, epochs = ((1, 16), 2) if scope.quick else ((1, 16, 32, 64), 20)
    sets = train_test("fashion-mnist")
    train_set, test_set = sets
    if scope.quick:
        train_set, test_set = _first(train_set, 512), _first(test_set, 256)
    return [_learned(name, block_size, epochs, train_set, test_set, scope) for name in SHAPES for block_size in blocks]


def _first(data: Dataset, count: int) -> Dataset:
    return replace(data, x=data.x[:count], y=data.y[:count])


def _learned(
    name: str, block_size: int, epochs: int, train_set: Dataset, test_set: Dataset, scope: Scope
) -> dict[str, Any]:
    torch.manual_seed(0)
    network: nn.Module = create(name, 10)
    if block_size > 1:
        layers = [path for path, one in network.named_modules() if isinstance(one, (nn.Conv2d, nn.Linear))]
        impl: Any = "kernel" if scope.device.startswith("cuda") else "reference"
        ends = {layers[0], layers[-1]}
        network, _ = convert(
            network, Circulant(block_size, rescale=True, signs=True, impl=impl), where=lambda path, _: path not in ends
        )
    settings = Training(epochs=epochs, batch=64, learning_rate=0.002, optimizer="adamw", precision="fp32")
    batches = partial(_batches, train_set, SHAPES[name], settings)
    tests = list(loader(test_set, SHAPES[name], 256, 0, 0, shuffle=False))
    per_epoch = steps(len(train_set), settings.batch)
    losses, hits = list[float](), list[float]()
    for state in run.train(network, settings, batches, lambda: tests, per_epoch, torch.device(scope.device)):
        if state.test_accuracy is not None:
            losses.append(state.train_loss)
            hits.append(state.test_accuracy)
    return {
        "workload": NAMES[name], "block_size": block_size, "seed": 0, "epochs": epochs, "median_us": 0.0,
        "parameters": sum(one.numel() for one in network.parameters()), "test_accuracy": hits, "train_loss": losses,
    }  # fmt: skip


def _batches(
    data: Dataset, shape: tuple[int, ...], settings: Training, epoch: int, start: int
) -> Iterator[tuple[Tensor, Tensor]]:
    return iter(loader(data, shape, settings.batch, settings.seed, epoch, start=start))

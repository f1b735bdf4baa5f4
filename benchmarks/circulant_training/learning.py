"""One run: a network learns, dense or with blocks of a size.

The first convolution and the classifier stay dense, as in CirCNN, and so do narrow convolutions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.circulant_training.experiments import Experiment
from lamina import measure
from lamina.accelerate import convert
from lamina.accelerate.methods.circulant import Circulant
from lamina.accelerate.methods.circulant.config import Impl
from lamina.accelerate.methods.circulant.parameter_groups import parameter_groups
from lamina.build.data import Dataset, jpeg_scan, load, loader, steps, train_test
from lamina.build.models import create
from lamina.pipeline.updates import fastest, updates_in
from lamina.record import Conversion
from lamina.run.training import train

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
NARROW = 128
"""Convolutions of fewer channels stay dense: blocks of 64 would stand alone in a row or column of them, and share few
weights among many pixels."""


def built(
    network: str, classes: int, block_size: int, impl: Impl, *, narrow: int = 0, signs: bool = False,
    normed: bool = False, device: torch.device | None = None,
) -> tuple[nn.Module, Conversion | None]:  # fmt: skip
    """The network with fresh weights, dense or with blocks of a size wherever they fit between its two ends.

    Blocks take their scale from the network's own first weights, of which they are the nearest. Dropout is for a layer
    of many weights: with ``k`` times fewer, its rate is divided by the root of ``k`` (Han et al., NIPS 2015, 3.2).
    Convolutions of fewer channels than ``narrow`` stay dense.
    """
    dense: Any = create(network, classes).to(device)
    if normed:
        pairs = ((each, nn.BatchNorm2d(each.out_channels)) if isinstance(each, nn.Conv2d) else (each,)
                 for each in dense.features)  # fmt: skip
        dense.features = nn.Sequential(*chain.from_iterable(pairs)).to(device)
    if block_size == 1:
        return dense, None
    for layer in dense.modules():
        if isinstance(layer, nn.Dropout):
            layer.p /= block_size**0.5
    layers = [name for name, layer in dense.named_modules() if isinstance(layer, (*CONVOLUTIONS, nn.Linear))]
    kept = {layers[-1]}
    for name in layers:
        layer = dense.get_submodule(name)
        if isinstance(layer, CONVOLUTIONS) and (name == layers[0] or min(layer.weight.shape[:2]) < narrow):
            kept.add(name)
    blocks = Circulant(block_size, rescale=True, signs=signs, impl=impl)
    return convert(dense, blocks, where=lambda name, _: name not in kept)


def learnt(
    name: str, experiment: Experiment, block_size: int, seed: int, source: str, device: torch.device,
    held_out: bool = False,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """A row for each epoch of one run; its ``seconds`` are the epoch's and its test's."""
    sets = held(train_test(source)[0]) if held_out else train_test(source)
    train_set, test_set = (replace(each, x=each.x.to(device), y=each.y.to(device)) for each in sets)
    torch.manual_seed(seed)
    classes = len(train_set.classes)
    network: Any
    network, record = built(
        experiment.network, classes, block_size, "auto", narrow=NARROW, signs=True,
        normed=experiment.normed, device=device,
    )  # fmt: skip
    if len(experiment.input) == 3:
        network.to(memory_format=torch.channels_last)
    settings = experiment.settings(seed)
    groups = parameter_groups(
        network, lr=settings.learning_rate, weight_decay=settings.weight_decay, optimizer=experiment.optimizer
    )
    for group in groups[1:]:
        more = settings.learning_rate * block_size**experiment.exponent / group["lr"]
        group["lr"], group["weight_decay"] = group["lr"] * more, group["weight_decay"] / more
    batches = partial(_batches, train_set, experiment, seed)
    tests = [*loader(test_set, experiment.input, 512, 0, 0, shuffle=False)]
    per_epoch = steps(len(train_set), experiment.batch, 1)
    watch = measure.Stopwatch()
    updates = updates_in(fastest(device), device, partial(print, file=sys.stderr))
    for state in train(network, settings, batches, lambda: tests, per_epoch, device, groups=groups, updates=updates):
        if state.test_accuracy is None:
            continue
        yield {
            "workload": name, "network": experiment.network, "block_size": block_size, "seed": seed,
            "epoch": state.epoch + 1, "epochs": experiment.epochs, "samples": len(train_set), "seconds": watch.lap(),
            "train_loss": state.train_loss, "train_accuracy": state.train_accuracy,
            "test_loss": state.test_loss, "test_accuracy": state.test_accuracy,
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "optimizer": experiment.optimizer, "weight_decay": experiment.weight_decay,
            "label_smoothing": experiment.label_smoothing, "cutout": experiment.cutout,
            "learning_rate": settings.learning_rate, "block_learning_rate": groups[-1]["lr"],
            "batch": experiment.batch, "precision": experiment.precision,
            "converted": None if record is None else [each.layer for each in record.replaced],
            "skipped": None if record is None else {each.layer: each.refusal for each in record.skipped},
        }  # fmt: skip


def held(data: Dataset) -> tuple[Dataset, Dataset]:
    """Training samples and a sixth of them, always the same, on which choices are made; normalised alike."""
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(data)))
    parts = order[len(data) // 6 :], order[: len(data) // 6]
    train_set, test_set = (replace(data, x=data.x[places], y=data.y[places]) for places in parts)
    return train_set, test_set


def _batches(data: Any, experiment: Experiment, seed: int, epoch: int, _: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The loader's batches, made sixteen at a time: on a shared device, each time a process waits is a turn lost."""
    shape, batch, augment, cutout = experiment.input, experiment.batch, experiment.augment, experiment.cutout
    for x, y in loader(data, shape, 16 * batch, seed, epoch, augment=augment, cutout=cutout):
        yield from zip(x.split(batch), y.split(batch), strict=True)


def prepared(experiment: Experiment, folder: Path, into: Path) -> str:
    """The data's name or file; of pictures that must be decoded, a file of some of them."""
    path = folder / experiment.data
    if not path.exists():
        return experiment.data
    if not jpeg_scan.splits(path):
        return str(path)
    arrays: dict[str, Any] = {}
    for split in ("train", "test"):
        data = load(path, split)
        chosen = np.random.default_rng(0).permutation(len(data))[: experiment.samples]
        arrays[f"x_{split}"] = data.x[chosen].permute(0, 2, 3, 1).numpy()
        arrays[f"y_{split}"] = data.y[chosen].numpy()
    made = into / f"{path.stem}_{experiment.samples}.npz"
    np.savez(made, **arrays)
    return str(made)

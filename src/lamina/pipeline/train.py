"""``train``: trains a network on a dataset and stores every epoch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lamina import measure, run
from lamina.build import Target
from lamina.build.data import loader, steps
from lamina.errors import UsageError
from lamina.pipeline.runs import begin, closing
from lamina.pipeline.watch import Watch, unwatched
from lamina.record import Epoch
from lamina.spec.training import Training
from lamina.store import Store


def train(
    target: Target,
    data: str,
    settings: Training,
    store: Store,
    *,
    device: str = "cpu",
    checkpoint: Path | None = None,
    resume: bool = False,
    command: str = "",
    watch: Watch = unwatched,
) -> nn.Module:
    """Train a network on a dataset and return it.

    The number of classes is that of the dataset. ``checkpoint`` stores the state for ``resume``. In a process group
    (:func:`lamina.run.join_processes`), the batch is split over the ranks, and rank 0 records.

    Raises:
        UsageError: the dataset does not match the network.
    """
    rank, world = run.rank_and_world()
    if settings.batch % world:
        raise UsageError(f"expected a batch divisible by {world} processes, got {settings.batch}")
    local_batch = settings.batch // world
    resolved = measure.resolve(device)
    train_set, test_set = target.train_test(data)
    shape = target.inputs[0].shape
    torch.manual_seed(settings.seed)
    network = target.make(len(train_set.classes))

    def batches(epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        return loader(
            train_set,
            shape,
            local_batch,
            settings.seed,
            epoch,
            augment=settings.augment,
            rank=rank,
            world_size=world,
            start=start,
        )

    tests = partial(loader, test_set, shape, 4 * local_batch, 0, 0, shuffle=False, rank=rank, world_size=world)
    progress = run.train(
        network,
        settings,
        batches,
        tests,
        steps(len(train_set), local_batch, world),
        resolved,
        checkpoint,
        resume=resume,
        objective=objective(data, len(train_set.classes), watch),
    )
    if rank:
        for _ in progress:
            pass
        return network

    this, _ = begin("train", target, settings, measure.environment(resolved), store, command, resume, {"data": data})
    stopwatch = measure.Stopwatch()
    with closing(store, this.id):
        for state in progress:
            watch(state)
            if state.test_loss is None or state.test_accuracy is None:
                continue
            epoch = Epoch(
                state.epoch,
                state.step,
                state.learning_rate,
                state.train_loss,
                state.train_accuracy,
                state.test_loss,
                state.test_accuracy,
                stopwatch.lap(),
            )
            store.add_epoch(this.id, epoch)
            watch(epoch)
    watch(f"run {this.id} is in {store.place}" + (f", the checkpoint is {checkpoint}" if checkpoint else ""))
    return network


def objective(data: str, classes: int, watch: Watch) -> run.Objective:
    """Cross-entropy of class scores. On synthetic data, whose labels mean nothing, outputs of any form can be trained.

    Raises:
        UsageError: when it is called on outputs without class scores, and the data are real.
    """

    def any_output(outputs: Any, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        watch("the network has no class scores: synthetic data train the mean square of its outputs; no accuracy")
        return run.mean_square(outputs, labels, smoothing)

    return run.classification(classes, any_output if data == "synthetic" else None)

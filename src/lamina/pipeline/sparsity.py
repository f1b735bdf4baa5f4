"""``sparsity``: the density of a network's activation maps while it trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lamina import measure, run
from lamina.accelerate.training.sparsity_monitor import MapReport, Monitor, Observation, Pace, Parameters
from lamina.build import Target
from lamina.build.data import batches
from lamina.errors import UsageError
from lamina.pipeline.masks import MaskRecorder
from lamina.pipeline.runs import begin, closing
from lamina.pipeline.train import explained, objective
from lamina.pipeline.watch import Watch, unwatched
from lamina.record import Run
from lamina.simulate.workloads import write_masks
from lamina.spec.training import Training
from lamina.store import Store

REPORT_EVERY = 10
"""Iterations between progress reports and writes to the store."""


@dataclass(frozen=True)
class Masks:
    """The file of zero masks, iterations between recordings, images of a batch to record, names of layers, and whether
    to record the gradients of their outputs too."""

    path: Path
    every: int
    images: int = 4
    layers: tuple[str, ...] = ("*",)
    gradients: bool = False


@dataclass(frozen=True)
class SparsityProfile:
    """The result of a training run: its stored run, all observations in order, and the final state of each map."""

    run_id: str
    observations: tuple[Observation, ...]
    maps: tuple[MapReport, ...]

    def of(self, name: str) -> tuple[Observation, ...]:
        """The observations of one map."""
        return tuple(observation for observation in self.observations if observation.name == name)


def sparsity(
    target: Target,
    data: str,
    settings: Training,
    store: Store,
    *,
    iterations: int,
    parameters: Parameters | None = None,
    schedules: Mapping[str, Pace] | None = None,
    exhaustive: bool = False,
    modules: Iterable[str] | None = None,
    masks: Masks | None = None,
    device: str = "cpu",
    command: str = "",
    watch: Watch = unwatched,
) -> SparsityProfile:
    """Train a network for some iterations with a sparsity monitor attached, and store its observations.

    The learning rate's schedule spans ``iterations``, however many epochs of the data they are; nothing is tested.

    Args:
        settings: how to train; their epochs are of no account.
        parameters: those of the monitor.
        schedules: of some maps, by name or pattern of names; see `Pace.parse`.
        exhaustive: observe every map at every iteration.
        modules: whose outputs to observe; if left out, every ReLU, or the other activations of a network without.
        masks: also record which inputs of convolutions are zero.

    Raises:
        UsageError: data and network do not fit each other, or there is nothing to observe.
        LaminaError: a training step failed.
    """
    if iterations < 1:
        raise UsageError(f"sparsity: expected at least 1 iteration, got {iterations}")
    if masks:
        _check(masks, iterations)
    place = measure.resolve(device)
    train_set, _ = target.train_test(data)
    torch.manual_seed(settings.seed)
    network = target.in_float32(len(train_set.classes), watch)
    settings = settings.model_copy(update={"epochs": 1})

    def train_batches(epoch: int, start: int) -> Iterator[tuple[run.Inputs, Tensor]]:
        shape, augment, cutout = target.inputs[0].shape, settings.augment, settings.cutout
        epochs = (
            batches(train_set, shape, settings.batch, settings.seed, number, augment=augment, cutout=cutout)
            for number in count()
        )
        return islice(chain.from_iterable(epochs), start, iterations)

    if modules is None and not any(isinstance(module, nn.ReLU) for module in network.modules()):
        watch("the network has no nn.ReLU: its other activations are observed, or all layers where it has none")
    with ExitStack() as stack:
        monitor = stack.enter_context(
            Monitor(network, parameters, modules=modules, paces=schedules, exhaustive=exhaustive)
        )
        recorder = None
        if masks:
            recorder = MaskRecorder(
                network, lambda: monitor.iteration, masks.every, masks.images, masks.layers, masks.gradients
            )
            stack.enter_context(recorder)
        more = {"data": data, "iterations": iterations, "exhaustive": exhaustive}
        more |= {"monitor": asdict(monitor.scheduler.parameters)}
        more |= {"schedules": {name: str(pace) for name, pace in schedules.items()}} if schedules else {}
        this, _ = begin("sparsity", target, settings, measure.environment(place), store, command, False, more)
        seen: list[Observation] = []

        def keep() -> None:
            new = monitor.take()
            store.add_sparsity(this.id, [observation.record() for observation in new])
            seen.extend(new)

        with closing(store, this.id) as remarks:

            def note(text: str) -> None:
                remarks.append(text)
                watch(text)

            try:
                training = run.train(
                    network, settings, train_batches, lambda: (), iterations, place, report_every=REPORT_EVERY,
                    objective=objective(data, len(train_set.classes), note),
                )  # fmt: skip
                for progress in explained(training, target.name):
                    watch(progress)
                    keep()
            finally:
                keep()
            monitor.finish()
            keep()
            if masks and recorder:
                write_masks(masks.path, recorder.masks, _provenance(this, data))
    return SparsityProfile(this.id, tuple(seen), monitor.report())


def _provenance(this: Run, data: str) -> dict[str, Any]:
    """Where masks are from: the run's command, data, device, versions and date."""
    known = {key: this.environment.get(key) for key in ("date", "device", "lamina", "commit", "torch")}
    return {"command": this.command, "network": this.target, "data": data, **known}


def _check(masks: Masks, iterations: int) -> None:
    """Check before training that masks can be written after it."""
    if masks.every > iterations:
        raise UsageError(f"masks: expected one at least every {iterations} iterations, got every {masks.every}")
    try:
        masks.path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"masks: {masks.path.parent} cannot be made ({error.strerror or error})") from error

"""Training as part of a longer job: epochs are stored with the job's run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from lamina import measure, run
from lamina.pipeline.deft.calibration import Material
from lamina.pipeline.train import explained, objective
from lamina.pipeline.updates import updates_in
from lamina.pipeline.watch import Watch
from lamina.record import Epoch
from lamina.spec.plan import PlanMode
from lamina.spec.training import Training
from lamina.spec.workload import Layout
from lamina.store import Store

TUNING_DIVISOR = 3
"""The learning rate of training over that of fine-tuning."""


@dataclass
class Learner:
    """Trains networks on the training split and evaluates them on the calibration split.

    ``mode`` is that of the updates of the weights: see `lamina.pipeline.updates`. ``layout="nhwc"`` trains in
    channels-last; the weights are contiguous afterwards.
    """

    settings: Training
    material: Material
    device: torch.device
    store: Store
    run_id: str
    watch: Watch
    note: Callable[[str], object]
    """Receives what the run has to say about its training."""
    mode: PlanMode = "eager"
    layout: Layout = "nchw"
    epochs: int = 0

    def learn(
        self,
        network: nn.Module,
        settings: Training,
        checkpoint: Path | None = None,
        resume: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> nn.Module:
        """Train in place; returns the network in evaluation mode. Epochs are stored, numbered over all trainings.

        Before each step ``stop`` decides whether to end the training early; a note says so.
        """
        done, ended = 0, False
        per_epoch = -(-len(self.material.learn) // settings.batch)

        def batches(epoch: int, start: int) -> Iterator[tuple[run.Inputs, Tensor]]:
            nonlocal done, ended
            done = epoch * per_epoch + start
            for batch in self.material.batches(
                settings.batch, settings.seed, epoch, start, settings.augment, settings.cutout
            ):
                ended = ended or stop()
                if ended:
                    return
                yield batch
                done += 1

        clock = measure.Stopwatch()
        if self.layout == "nhwc":
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        progress = run.train(
            network,
            settings,
            batches,
            lambda: self.material.ordered(self.material.calibration),
            per_epoch,
            self.device,
            checkpoint,
            resume=resume,
            objective=objective(self.material.learn.name, self.material.classes, self.note),
            seconds=lambda: clock.seconds,
            updates=updates_in(self.mode, self.device, self.note),
        )
        for state in explained(progress, type(network).__name__):
            self.watch(state)
            measure.pause()
            if state.test_loss is None or state.test_accuracy is None:
                continue
            before = (state.learning_rate, state.train_loss, state.train_accuracy)
            epoch = Epoch(self.epochs, state.step, *before, state.test_loss, state.test_accuracy, clock.lap())
            self.epochs += 1
            self.store.add_epoch(self.run_id, epoch)
            self.watch(epoch)
        if ended:
            steps = settings.epochs * per_epoch
            self.note(f"the time budget ended the training after {done} of {steps} steps")
        if self.layout == "nhwc":
            network = network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return network.eval()

    def tune(self, network: nn.Module, epochs: int) -> nn.Module:
        """Fine-tune for some epochs at a lower learning rate; 0 leaves the network unchanged."""
        if not epochs:
            return network
        slower = {"epochs": epochs, "learning_rate": self.settings.learning_rate / TUNING_DIVISOR, "warmup_steps": 0}
        return self.learn(network, self.settings.model_copy(update=slower))

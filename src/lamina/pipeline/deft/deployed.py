"""Deployed networks: accuracy, latency and size in one precision on one device."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from lamina import build, measure, run
from lamina.accelerate.methods.weight_only.nn import WeightOnlyConv, WeightOnlyLinear
from lamina.errors import UnsupportedError
from lamina.pipeline.deft.agreement import agreement
from lamina.pipeline.deft.calibration import Material, accuracy, placed
from lamina.pipeline.deft.pruning import multiplications
from lamina.pipeline.deft.records import Measured, Objective
from lamina.record import Timing
from lamina.spec import Precision

ROUNDS = 7
"""Rounds of interleaved timing."""

REPEAT = measure.Repeat(min_samples=3, max_samples=200, min_time_s=0.02, max_time_s=0.2, warmup=2)
"""Samples of one network in one round."""


@dataclass(frozen=True)
class Deployment:
    """Device, precision, batch size and data with which networks are evaluated.

    ``reference`` is the deployed dense network whose outputs the others are compared with where they are no class
    scores: what is called accuracy is then 100 less the relative error of the outputs, see `agreement`.
    """

    device: torch.device
    precision: Precision
    batch: int
    material: Material
    reference: nn.Module | None = None

    def example(self, precision: str = "") -> run.Inputs:
        """One batch of calibration inputs, repeated from the first one if there are too few."""
        return placed(self.material.example(self.batch), self.device, precision or self.precision)

    def judging(self, dense: nn.Module) -> Deployment:
        """The same, with the dense network as the reference if its outputs hold no class scores.

        Raises:
            UnsupportedError: the network does not run in the precision.
        """
        model, parts = self.deploy(dense), self.material
        x, y = next(iter(parts.ordered(parts.calibration)))
        try:
            with torch.no_grad(), run.precision_mode(self.precision):
                outputs = run.forward(model, placed(x, self.device, self.precision))
        except Exception as error:
            raise UnsupportedError(f"the network does not run in {self.precision}: {run.one_line(error)}") from error
        scores = run.class_scores(outputs, y, parts.classes)
        return self if scores is not None else replace(self, reference=model)

    @torch.no_grad()
    def output_shape(self, model: nn.Module) -> tuple[int, ...]:
        """The shape of the first output of a deployed model; empty without any."""
        return tuple(next((one.shape for one in run.tensors(run.forward(model, self.example()))), ()))

    @property
    def objective(self) -> Objective:
        """What limits the choice of a network."""
        return "output error" if self.reference else "accuracy"

    def deploy(self, model: nn.Module) -> nn.Module:
        """A copy in the precision on the device."""
        return build.to_precision(copy.deepcopy(model), self.precision, self.device, "nchw").eval()

    def calibrated(self, model: nn.Module) -> float:
        """Accuracy of a deployed model on the calibration samples, in percent."""
        return self._accuracy(model, test=False)

    def tested(self, model: nn.Module) -> float:
        """Accuracy of a deployed model on the test samples, in percent."""
        return self._accuracy(model, test=True)

    def _accuracy(self, model: nn.Module, test: bool) -> float:
        part = self.material.test if test else self.material.calibration
        batches = self.material.ordered(part)
        with run.precision_mode(self.precision):
            if self.reference is not None:
                inputs = (placed(x, self.device, self.precision) for x, _ in batches)
                return agreement(model, self.reference, inputs, self.device)
            return accuracy(model, batches, self.device, self.precision, self.material.classes)

    def interleaved(self, *models: nn.Module) -> list[Timing]:
        """Latency of one forward pass of each deployed model: CUDA events on a GPU, wall time on a CPU.

        Timing is interleaved, round after round, so that other load on the machine slows all models. Quartiles are over
        the rounds.
        """
        return [
            measure.summarize([one.median_us for one in column], column[0].clock, column[0].l2, column[0].kernels)
            for column in zip(*self._rounds(models), strict=True)
        ]

    def ratio(self, model: nn.Module, dense: nn.Module) -> float:
        """Latency of a deployed model over the dense one's: the shortest round of each, since noise only adds time."""
        rounds = self._rounds((model, dense))
        ours, theirs = (min(times[which].median_us for times in rounds) for which in (0, 1))
        return ours / theirs

    @torch.no_grad()
    def _rounds(self, models: Sequence[nn.Module]) -> list[list[Timing]]:
        x = self.example()
        clock = measure.clock("events" if self.device.type == "cuda" else "cpu", self.device)
        rounds: list[list[Timing]] = []
        with run.precision_mode(self.precision):
            for _ in range(ROUNDS):
                rounds.append([clock.time(partial(run.forward, model, x), repeat=REPEAT) for model in models])
        return rounds

    def measured(self, name: str, model: nn.Module, latency: Timing) -> Measured:
        """All measurements of a deployed model."""
        return Measured(
            name,
            self.tested(model),
            self.calibrated(model),
            latency,
            parameters(model),
            multiplications(model, self.example()) // self.batch,
            sum(tensor.nbytes for tensor in run.saved_weights(model).values()),
        )


def parameters(model: nn.Module) -> int:
    """Number of nonzero parameters of a network; quantized weights all count."""
    stored = sum(
        module.weight.numel() for module in model.modules() if isinstance(module, WeightOnlyLinear | WeightOnlyConv)
    )
    return sum(int(parameter.count_nonzero()) for parameter in model.parameters()) + stored

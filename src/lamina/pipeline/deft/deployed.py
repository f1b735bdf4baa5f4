"""Networks as they will run: their accuracy, latency and size in one precision on one device."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from lamina import build, measure, run
from lamina.accelerate.methods.weight_only.nn import WeightOnlyConv, WeightOnlyLinear
from lamina.pipeline.deft.calibration import Material, accuracy, placed
from lamina.pipeline.deft.pruning import multiplications
from lamina.pipeline.deft.records import Measured
from lamina.record import Timing
from lamina.spec import Precision

ROUNDS = 7
"""In which networks are timed by turns."""

TURN = measure.Repeat(min_samples=3, max_samples=200, min_time_s=0.02, max_time_s=0.2, warmup=2)
"""Of one network in one round."""


@dataclass(frozen=True)
class Place:
    """Where and how networks run, and what they are judged by."""

    device: torch.device
    precision: Precision
    batch: int
    material: Material

    def example(self, precision: str = "") -> Tensor:
        """Calibration inputs of the batch that counts, the first ones again where there are too few."""
        x = next(iter(self.material.ordered(self.material.calibration, self.batch)))[0]
        return placed(x[torch.arange(self.batch) % len(x)], self.device, precision or self.precision)

    def deploy(self, model: nn.Module) -> nn.Module:
        """A copy that is ready to run."""
        return build.to_precision(copy.deepcopy(model), self.precision, self.device, "nchw").eval()

    def calibrated(self, model: nn.Module) -> float:
        """The accuracy of a deployed model on the calibration samples, in percent."""
        return self._accuracy(model, test=False)

    def tested(self, model: nn.Module) -> float:
        """Its accuracy on the test samples, in percent."""
        return self._accuracy(model, test=True)

    def _accuracy(self, model: nn.Module, test: bool) -> float:
        part = self.material.test if test else self.material.calibration
        with run.precision_mode(self.precision):
            return accuracy(model, self.material.ordered(part), self.device, self.precision)

    def by_turns(self, *models: nn.Module) -> list[Timing]:
        """One forward pass of each deployed model: between two events on a GPU, by the wall on a CPU.

        They are timed in turn, round after round, so that what else slows the machine slows them all. Quartiles are
        those of the rounds.
        """
        return [
            measure.summarize([one.median_us for one in column], column[0].clock, column[0].l2, column[0].kernels)
            for column in zip(*self._rounds(models), strict=True)
        ]

    def ratio(self, model: nn.Module, dense: nn.Module) -> float:
        """A deployed model's latency in parts of another's: the shortest rounds of both, for noise only adds time."""
        rounds = self._rounds((model, dense))
        ours, theirs = (min(times[place].median_us for times in rounds) for place in (0, 1))
        return ours / theirs

    @torch.no_grad()
    def _rounds(self, models: Sequence[nn.Module]) -> list[list[Timing]]:
        x = self.example()
        clock = measure.clock("events" if self.device.type == "cuda" else "cpu", self.device)
        rounds: list[list[Timing]] = []
        with run.precision_mode(self.precision):
            for _ in range(ROUNDS):
                rounds.append([clock.time(partial(model, x), repeat=TURN) for model in models])
        return rounds

    def measured(self, name: str, model: nn.Module, latency: Timing) -> Measured:
        """All of a deployed model."""
        return Measured(
            name,
            self.tested(model),
            self.calibrated(model),
            latency,
            parameters(model),
            multiplications(model, self.example()) // self.batch,
            sum(tensor.nbytes for tensor in model.state_dict().values()),
        )


def parameters(model: nn.Module) -> int:
    """Of a network, those that are not zero; what is stored in another format counts among them."""
    stored = sum(
        module.weight.numel() for module in model.modules() if isinstance(module, WeightOnlyLinear | WeightOnlyConv)
    )
    return sum(int(parameter.count_nonzero()) for parameter in model.parameters()) + stored

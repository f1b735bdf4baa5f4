"""Zeros in activation maps of small trainings, and the time that counting them adds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina import measure
from lamina.accelerate.training.sparsity_monitor import Monitor, Observation, Parameters
from lamina.build.data import loader, train_test
from lamina.build.models import create
from lamina.pipeline.reproduce.measured.judging import Rows, Scope
from lamina.pipeline.reproduce.measured.monitor import EXHAUSTIVE, SAMPLED

SIZES = {"cifarnet64": 32, "vgg11_cifar": 32, "resnet10_cifar": 32, "alexnet": 64}
"""Networks and the side of their images, for a CPU; on a GPU those of ImageNet are 224."""
LARGE = {"alexnet": 224, "vgg16": 224, "resnet18": 224}
ONCE = measure.Repeat(min_samples=1, max_samples=1, min_time_s=0.0, max_time_s=0.0, warmup=0)


def images(batch: int, side: int, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of Fashion-MNIST without end, as color images of a side."""
    data, epoch = train_test("fashion-mnist")[0], 0
    while True:
        for x, y in loader(data, None, batch, 0, epoch):
            if len(y) == batch:
                large = F.interpolate(x.expand(-1, 3, -1, -1), (side, side))
                yield large.to(device), y.to(device)
        epoch += 1


class Trainer:
    """A network with its optimizer."""

    def __init__(self, name: str, device: str):
        torch.manual_seed(0)
        self.network = create(name, 10).to(device).train()
        self.optimizer = torch.optim.SGD(self.network.parameters(), 0.01, momentum=0.9)

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        F.cross_entropy(self.network(x), y).backward()
        self.optimizer.step()


def zeros(scope: Scope) -> Rows:
    """Figures 6.1, 6.2, 6.14 and 6.15: three networks, counted at every iteration and by the monitor."""
    names = ("cifarnet64", "vgg11_cifar", "alexnet")
    steps, batch = (32, 4) if scope.quick else (2000, 64)
    pace = Parameters(initial_period=2, duration=1) if scope.quick else Parameters(initial_period=50, duration=5)
    return [_watched(name, steps, batch, pace, scope) for name in names]


def _watched(name: str, steps: int, batch: int, pace: Parameters, scope: Scope) -> dict[str, Any]:
    trainer = Trainer(name, scope.device)
    with Monitor(trainer.network, exhaustive=True) as whole, Monitor(trainer.network, pace) as sampled:
        for x, y in islice(images(batch, _side(name, scope), scope.device), steps):
            trainer.step(x, y)
        for monitor in (whole, sampled):
            monitor.finish()
        seen, some = whole.take(), sampled.take()
    maps, every = list(dict.fromkeys(one.name for one in seen)), max(1, steps // 50)
    return {
        "workload": name, "impl": "watched[exhaustive]", "batch": batch, "iterations": steps, "every": every,
        "pace": [pace.initial_period, pace.duration],
        "densities": {n: [one.density for one in seen if one.name == n and not one.iteration % every] for n in maps},
        "sampled": {n: [[one.iteration, one.density] for one in some if one.name == n] for n in maps},
        "trend_apart": {n: apart(seen, some, n, pace.duration) for n in maps},
    }  # fmt: skip


def apart(seen: list[Observation], some: list[Observation], name: str, duration: int) -> float:
    """Mean distance over iterations of the sampled trend to the whole one.

    The sampled trend interpolates between the means of monitoring processes; the whole one is the mean over as many
    iterations as a process observes.
    """
    density = np.array([each.density for each in seen if each.name == name])
    smooth = np.convolve(density, np.ones(duration) / duration, mode="valid")
    processes: list[list[Observation]] = []
    for each in (each for each in some if each.name == name):
        if processes and each.iteration == processes[-1][-1].iteration + 1 and len(processes[-1]) < duration:
            processes[-1].append(each)
        else:
            processes.append([each])
    at = [process[0].iteration for process in processes]
    means = [fmean(each.density for each in process) for process in processes]
    within = np.arange(at[0], min(at[-1], len(smooth) - 1) + 1)
    return float(np.abs(np.interp(within, at, means) - smooth[within]).mean())


def overhead(scope: Scope) -> Rows:
    """Table 6.6: the time that monitors add to a training step, in alternating rounds."""
    names = ("vgg11_cifar", "resnet10_cifar", "alexnet") if scope.quick else ("vgg11_cifar", "resnet10_cifar", *LARGE)
    steps, batch, rounds = (2, 4, 1) if scope.quick else (50, 64, 4)
    return [row for name in names for row in _added(name, steps, batch, rounds, scope)]


def _added(name: str, steps: int, batch: int, rounds: int, scope: Scope) -> Iterator[dict[str, Any]]:
    trainer = Trainer(name, scope.device)
    batches = list(islice(images(batch, _side(name, scope), scope.device), 2))
    clock = measure.clock("cpu" if scope.device == "cpu" else "wall", scope.device)
    period = Parameters(initial_period=steps, duration=max(1, steps // 100))
    kinds: dict[str, Callable[[nn.Module], Any]] = {
        "dense": lambda network: nullcontext(),
        SAMPLED: lambda network: Monitor(network, period),
        "monitor[exhaustive]": lambda network: Monitor(network, exhaustive=True),
        EXHAUSTIVE: lambda network: Monitor(network, exhaustive=True, impl="torch"),
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}

    def train() -> None:
        for step in range(steps):
            trainer.step(*batches[step % len(batches)])

    for turn in range(rounds + 1):  # the first warms up
        for kind, monitor in kinds.items():
            with monitor(trainer.network):
                took = clock.time(train, repeat=ONCE).median_us / steps
            if turn:
                times[kind].append(took)
    for kind, samples in times.items():
        added = [mine / plain - 1 for mine, plain in zip(samples, times["dense"], strict=True)]
        yield {
            "workload": name, "layer": name, "phase": "step", "precision": "fp32", "layout": "nchw", "impl": kind,
            "batch": batch, "timing": clock.name, "median_us": median(samples), "added": median(added),
            "iterations": steps,
        }  # fmt: skip


def _side(name: str, scope: Scope) -> int:
    return SIZES.get(name, 64) if scope.quick else LARGE.get(name, 32)

"""Claim: watching the zeros of a training network costs next to nothing; looking at every map all the time does not.

Training steps without a monitor, with one that has nothing to do, with one that looks once in a round, and with ones
that look at every map at every iteration: by a pass of their own, within ReLU's, and by the library's operators. The
published pace looks at 5 iterations of 500; a round looks at one of 50, or of fewer. Rounds of all kinds take turns,
so that a drift of the clock is everyone's, and a kind is held to the rounds without a monitor that ran beside its own.
The first iteration of a monitor, which makes the memory for its counts once, is before its round.
``smoke`` is for the CPU.

Run: python -m benchmarks.monitor_overhead full
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import results
from lamina import measure, run
from lamina.accelerate.sparsity.monitor import Monitor, Parameters
from lamina.build import DTYPES
from lamina.build.models import create

KINDS: dict[str, Callable[[nn.Module, int], Any]] = {
    "dense": lambda model, iterations: nullcontext(),
    "monitor[idle]": lambda model, iterations: Monitor(model, Parameters(initial_period=10_000, duration=1)),
    "monitor[sampled]": lambda model, iterations: Monitor(model, Parameters(initial_period=iterations, duration=1)),
    "monitor[exhaustive]": lambda model, iterations: Monitor(model, exhaustive=True),
    "monitor[exhaustive,fused]": lambda model, iterations: Monitor(model, exhaustive=True, fuse=True),
    "monitor[exhaustive,torch]": lambda model, iterations: Monitor(model, exhaustive=True, impl="torch"),
}


CALLS = 5
"""Calls that the wall clock times together."""

SLOW = "monitor[exhaustive,torch]"
"""What takes so long that two rounds must do."""


@dataclass(frozen=True)
class Network:
    """A network at an input and a batch, in rounds of some iterations, which `CALLS` divides."""

    name: str
    shape: tuple[int, int, int]
    batch: int
    iterations: int
    rounds: int
    precisions: tuple[str, ...] = ("fp32", "tf32")


@dataclass(frozen=True)
class Scope:
    """What is measured where."""

    device: str
    networks: tuple[Network, ...]


SCOPES = {
    "full": Scope(
        "cuda",
        (
            Network("alexnet", (3, 224, 224), 64, 50, 3), Network("vgg11_cifar", (3, 32, 32), 128, 50, 9),
            Network("resnet10_cifar", (3, 32, 32), 128, 50, 5), Network("resnet18", (3, 224, 224), 64, 20, 3),
            Network("vgg16", (3, 224, 224), 64, 10, 2),
        ),
    ),
    "smoke": Scope("cpu", (Network("lenet5", (1, 28, 28), 4, 5, 2, ("fp32",)),)),
}  # fmt: skip


def measured(network: Network, scope: Scope, precision: str) -> Iterator[dict[str, Any]]:
    """A row for each kind: the time of a training step, over all rounds."""
    name, batch, iterations = network.name, network.batch, network.iterations
    torch.manual_seed(0)
    model = create(name, 10).to(scope.device).train()
    x = torch.randn(batch, *network.shape, device=scope.device, dtype=DTYPES[precision])
    labels = torch.arange(batch, device=scope.device) % 10
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

    def train(steps: int = iterations // CALLS) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()

    clock = measure.clock("wall" if scope.device == "cuda" else "cpu", scope.device)
    round_ = measure.Repeat(min_samples=1, max_samples=1, min_time_s=0.0, max_time_s=0.0, warmup=0)
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    observed: dict[str, int] = {}
    for turn in range(network.rounds + 1):  # the first makes kernels and memory
        for kind, make in KINDS.items():
            if kind == SLOW and turn > 2:
                continue
            with make(model, iterations) as monitor:
                train(1)
                took = clock.time(train, repeat=round_).median_us / (iterations // CALLS)
            if turn:
                times[kind].append(took)
            observed[kind] = len(monitor.observations) if monitor else 0
    for kind, samples in times.items():
        added = median(mine / plain - 1 for mine, plain in zip(samples, times["dense"], strict=False))
        q1, _, q3 = quantiles(samples, n=4, method="inclusive")
        yield {
            "workload": name, "layer": name, "phase": "step", "precision": precision, "layout": "nchw", "impl": kind,
            "batch": batch, "timing": clock.name, "l2": "warm", "by": "lamina", "median_us": median(samples),
            "q1_us": q1, "q3_us": q3, "n": len(samples), "rel_error": None,
            "unchecked": "a monitor only reads; its counts are held to counts by hand in its tests",
            "iterations": iterations, "observations": observed[kind], "added": added,
        }  # fmt: skip


def overheads(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """What each kind adds to a step without a monitor, in per cent: the median over pairs of rounds."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["impl"] != "dense":
            key = f"% added to a step: {row['workload']}, {row['precision']}"
            found.setdefault(key, {})[row["impl"]] = round(100 * row["added"], 2)
    return found


def main() -> None:
    asked = results.arguments("monitor_overhead", scope=tuple(SCOPES))
    scope, rows = SCOPES[asked.scope], list[dict[str, Any]]()
    claim = "monitor_overhead" if asked.scope == "full" else f"monitor_overhead_{asked.scope}"
    for network in scope.networks:
        for precision in network.precisions:
            with run.precision_mode(precision):
                mine = list(measured(network, scope, precision))
            rows += mine
            for row in mine:
                added = round(100 * row["added"], 2)
                print(network.name, precision, row["impl"], round(row["median_us"], 1), added, "%", flush=True)
            # After each network, so that an end before the last one leaves what there is.
            path = results.write(claim, scope.device, rows, overheads(rows), asked, f"monitor_overhead {asked.scope}")
            torch.cuda.empty_cache()
    print(path)


if __name__ == "__main__":
    main()

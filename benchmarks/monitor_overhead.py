"""Claim: watching the zeros of a training network costs next to nothing; looking at every map all the time not much.

Training steps without a monitor, with one that has nothing to do, with one that looks now and then, and with ones that
look at every map at every iteration: by a pass of their own, within ReLU's, and by the library's operators. The
published pace looks at 5 iterations of 500, and so it does here where steps are short; elsewhere at one of 100, or of
fewer.

Kinds take turns, there and back again. A turn begins and ends with steps without a monitor, and every kind is held to
the mean of these two: so a drift of a clock is everyone's. What a kind adds is the median over turns, with an interval
that holds the true median 19 times of 20; what the last steps without a monitor add to the first ones stands beside it:
what there is to see where there is nothing. The process is held to one core: where the host decides, a step is shorter
so, and takes as long each time, while on many cores the threads of forward and backward wander, and steps without a
monitor differ by a tenth from one turn to the next.
The first iterations of a monitor, which make the memory for its counts once, are before its round.
Others at work on the host only ever make a step longer: so what the least step of a kind takes over the least without
a monitor stands beside that. ``host`` repeats more often the networks of which the host decides; ``smoke`` is for the
CPU.

Run: python -m benchmarks.monitor_overhead full
"""

from __future__ import annotations

import os
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from math import comb
from statistics import fmean, median, quantiles
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import results
from lamina import measure, run
from lamina.accelerate.training.sparsity_monitor import Monitor, Parameters
from lamina.build import DTYPES
from lamina.build.models import create

KINDS: dict[str, Callable[[nn.Module, int], Any]] = {
    "dense": lambda model, iterations: nullcontext(),
    "monitor[idle]": lambda model, iterations: Monitor(model, Parameters(initial_period=10_000, duration=1)),
    "monitor[sampled]": lambda model, iterations: Monitor(
        model, Parameters(initial_period=iterations, duration=max(1, iterations // 100))
    ),
    "monitor[exhaustive]": lambda model, iterations: Monitor(model, exhaustive=True),
    "monitor[exhaustive,fused]": lambda model, iterations: Monitor(model, exhaustive=True, fuse=True),
    "monitor[exhaustive,torch]": lambda model, iterations: Monitor(model, exhaustive=True, impl="torch"),
    "dense again": lambda model, iterations: nullcontext(),
}

CALLS = 5
"""Calls that the wall clock times together."""

SAMPLED = "monitor[sampled]"
"""What has rounds as long as its period."""

SLOW = "monitor[exhaustive,torch]"
"""What takes so long that two rounds must do."""


@dataclass(frozen=True)
class Network:
    """A network at an input and a batch, in rounds of some iterations, or of a period, which `CALLS` divides.

    There are more rounds in the precisions in which the host decides.
    """

    name: str
    shape: tuple[int, int, int]
    batch: int
    iterations: int
    period: int
    rounds: dict[str, int]


@dataclass(frozen=True)
class Scope:
    """What is measured where."""

    device: str
    networks: tuple[Network, ...]


SCOPES = {
    "full": Scope(
        "cuda",
        (
            Network("alexnet", (3, 224, 224), 64, 50, 100, {"fp32": 4, "tf32": 6}),
            Network("vgg11_cifar", (3, 32, 32), 128, 50, 500, {"fp32": 4, "tf32": 15}),
            Network("resnet10_cifar", (3, 32, 32), 128, 50, 500, {"fp32": 4, "tf32": 9}),
            Network("resnet18", (3, 224, 224), 64, 20, 50, {"fp32": 4, "tf32": 6}),
            Network("vgg16", (3, 224, 224), 64, 10, 20, {"fp32": 3, "tf32": 3}),
        ),
    ),
    "host": Scope(
        "cuda",
        (
            Network("vgg11_cifar", (3, 32, 32), 128, 50, 500, {"tf32": 24}),
            Network("resnet10_cifar", (3, 32, 32), 128, 50, 500, {"tf32": 24}),
        ),
    ),
    "smoke": Scope("cpu", (Network("lenet5", (1, 28, 28), 4, 5, 10, {"fp32": 2}),)),
}  # fmt: skip


def measured(network: Network, scope: Scope, precision: str) -> Iterator[dict[str, Any]]:
    """A row for each kind: the time of a training step, over all rounds."""
    name, batch = network.name, network.batch
    torch.manual_seed(0)
    model = create(name, 10).to(scope.device).train()
    x = torch.randn(batch, *network.shape, device=scope.device, dtype=DTYPES[precision])
    labels = torch.arange(batch, device=scope.device) % 10
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()

    clock = measure.clock("wall" if scope.device == "cuda" else "cpu", scope.device)
    round_ = measure.Repeat(min_samples=1, max_samples=1, min_time_s=0.0, max_time_s=0.0, warmup=0)
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    observed: dict[str, int] = {}
    for turn in range(network.rounds[precision] + 1):  # the first makes kernels and memory
        for kind in KINDS if turn % 2 else reversed(KINDS):
            if kind == SLOW and turn > 2:
                continue
            steps = network.period if kind == SAMPLED else network.iterations
            with KINDS[kind](model, steps) as monitor:
                train(2)
                took = clock.time(partial(train, steps // CALLS), repeat=round_).median_us / (steps // CALLS)
            if turn:
                times[kind].append(took)
            observed[kind] = len(monitor.observations) if monitor else 0
    before, after = times["dense"], times.pop("dense again")
    beside = [fmean(pair) for pair in zip(before, after, strict=True)]
    for kind, samples in times.items():
        of_turns = zip(after, before, strict=True) if kind == "dense" else zip(samples, beside, strict=False)
        added = [mine / plain - 1 for mine, plain in of_turns]
        low, high = interval(added)
        all_ = before + after if kind == "dense" else samples
        least = min(after) / min(before) if kind == "dense" else min(samples) / min(before + after)
        q1, _, q3 = quantiles(all_, n=4, method="inclusive")
        yield {
            "workload": name, "layer": name, "phase": "step", "precision": precision, "layout": "nchw", "impl": kind,
            "batch": batch, "timing": clock.name, "l2": "warm", "by": "lamina", "median_us": median(all_),
            "q1_us": q1, "q3_us": q3, "n": len(all_), "rel_error": None,
            "unchecked": "a monitor only reads; its counts are held to counts by hand in its tests",
            "iterations": network.period if kind == SAMPLED else network.iterations, "observations": observed[kind],
            "added": median(added), "added_low": low, "added_high": high, "added_to_least": least - 1,
        }  # fmt: skip


def quietest() -> int:
    """Of the cores that this process may use the one on which a loop is done first: others may be at work here."""
    allowed, took = os.sched_getaffinity(0), dict[int, float]()
    for core in allowed:
        os.sched_setaffinity(0, {core})
        took[core] = min(timeit.repeat("sum(range(20_000))", number=10, repeat=5)[1:])
    os.sched_setaffinity(0, allowed)
    return min(took, key=took.__getitem__)


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """What holds the median of that which samples are drawn from 19 times of 20; of fewer than six, all of them.

    The median lies beyond the k-th smallest where at most k - 1 samples fall below it, as in tosses of a coin.
    """
    ordered, n = sorted(samples), len(samples)
    cut = 0
    while sum(comb(n, below) for below in range(cut + 2)) <= 0.025 * 2**n:
        cut += 1
    return ordered[cut], ordered[-1 - cut]


def overheads(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """What each kind adds to a step, in per cent, the interval of its median over turns, and to the least step."""
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        key = f"% added to a step (95 % interval): {row['workload']}, {row['precision']}"
        kind = "dense again" if row["impl"] == "dense" else row["impl"]
        found.setdefault(key, {})[kind] = shown(row)
    return found


def shown(row: Mapping[str, Any]) -> str:
    """What a kind adds, in per cent."""
    low, middle, high, least = (100 * row[name] for name in ("added_low", "added", "added_high", "added_to_least"))
    return f"{middle:.2f} ({low:.2f} to {high:.2f}), least {least:.2f}"


def main() -> None:
    asked = results.arguments("monitor_overhead", scope=tuple(SCOPES))
    scope, rows = SCOPES[asked.scope], list[dict[str, Any]]()
    if scope.device == "cuda":
        os.sched_setaffinity(0, {quietest()})
    claim = "monitor_overhead" if asked.scope == "full" else f"monitor_overhead_{asked.scope}"
    for network in scope.networks:
        for precision in network.rounds:
            with run.precision_mode(precision):
                mine = list(measured(network, scope, precision))
            rows += mine
            for row in mine:
                print(network.name, precision, row["impl"], round(row["median_us"], 1), shown(row), "%", flush=True)
            # After each network, so that an end before the last one leaves what there is.
            path = results.write(claim, scope.device, rows, overheads(rows), asked, f"monitor_overhead {asked.scope}")
            torch.cuda.empty_cache()
    print(path)


if __name__ == "__main__":
    main()

"""Claim: watching the zeros of a training network costs next to nothing; looking at every map all the time does not.

Training steps without a monitor, with one that has nothing to do, with one that looks once in a while, and with ones
that look at every map at every iteration: by a pass of their own, within ReLU's, and by the library's operators. Rounds
of all kinds take turns, so that a drift of the clock is everyone's. ``smoke`` is for the CPU.

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

PERIOD = 20
"""Iterations of a round, and from one look of the sampled monitor to its next: far more than the published pace."""

KINDS: dict[str, Callable[[nn.Module], Any]] = {
    "dense": lambda model: nullcontext(),
    "monitor[idle]": lambda model: Monitor(model, Parameters(initial_period=10_000, duration=1)),
    f"monitor[period={PERIOD}]": lambda model: Monitor(model, Parameters(initial_period=PERIOD, duration=1)),
    "monitor[exhaustive]": lambda model: Monitor(model, exhaustive=True),
    "monitor[exhaustive,fused]": lambda model: Monitor(model, exhaustive=True, fuse=True),
    "monitor[exhaustive,torch]": lambda model: Monitor(model, exhaustive=True, impl="torch"),
}


@dataclass(frozen=True)
class Scope:
    """Which networks at which input and batch, and how many rounds."""

    device: str
    networks: tuple[tuple[str, tuple[int, int, int], int], ...]
    rounds: int
    iterations: int
    precisions: tuple[str, ...]


SCOPES = {
    "full": Scope(
        "cuda",
        (
            ("alexnet", (3, 224, 224), 64), ("vgg16", (3, 224, 224), 64), ("resnet18", (3, 224, 224), 64),
            ("vgg11_cifar", (3, 32, 32), 128), ("resnet10_cifar", (3, 32, 32), 128),
        ),
        10, PERIOD, ("fp32", "tf32"),
    ),
    "smoke": Scope("cpu", (("lenet5", (1, 28, 28), 4),), 2, 2, ("fp32",)),
}  # fmt: skip


def measured(
    name: str, shape: tuple[int, int, int], batch: int, scope: Scope, precision: str
) -> Iterator[dict[str, Any]]:
    """A row for each kind: the time of a training step, over all rounds."""
    torch.manual_seed(0)
    model = create(name, 10).to(scope.device).train()
    x = torch.randn(batch, *shape, device=scope.device, dtype=DTYPES[precision])
    labels = torch.arange(batch, device=scope.device) % 10
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

    def train() -> None:
        for _ in range(scope.iterations):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()

    clock = measure.clock("wall" if scope.device == "cuda" else "cpu", scope.device)
    round_ = measure.Repeat(min_samples=1, max_samples=1, min_time_s=0.0, max_time_s=0.0, warmup=1)
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    observed: dict[str, int] = {}
    for _ in range(scope.rounds):
        for kind, make in KINDS.items():
            with make(model) as monitor:
                times[kind].append(clock.time(train, repeat=round_).median_us / scope.iterations)
            observed[kind] = len(monitor.observations) if monitor else 0
    for kind, samples in times.items():
        q1, _, q3 = quantiles(samples, n=4, method="inclusive")
        yield {
            "workload": name, "layer": name, "phase": "step", "precision": precision, "layout": "nchw", "impl": kind,
            "batch": batch, "timing": clock.name, "l2": "warm", "by": "lamina", "median_us": median(samples),
            "q1_us": q1, "q3_us": q3, "n": len(samples), "rel_error": None,
            "unchecked": "a monitor only reads; its counts are held to counts by hand in its tests",
            "observations": observed[kind],
        }  # fmt: skip


def overheads(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """What each kind adds to a step without a monitor, in per cent."""
    plain = {(r["workload"], r["precision"]): r["median_us"] for r in rows if r["impl"] == "dense"}
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        key = row["workload"], row["precision"]
        if row["impl"] != "dense":
            share = round(100 * (row["median_us"] / plain[key] - 1), 2)
            found.setdefault(f"% added to a step: {', '.join(key)}", {})[row["impl"]] = share
    return found


def main() -> None:
    asked = results.arguments("monitor_overhead", scope=tuple(SCOPES))
    scope, rows = SCOPES[asked.scope], []
    for precision in scope.precisions:
        with run.precision_mode(precision):
            for name, shape, batch in scope.networks:
                mine = list(measured(name, shape, batch, scope, precision))
                rows += mine
                for row in mine:
                    print(name, precision, row["impl"], round(row["median_us"], 1), row["observations"], flush=True)
    claim = "monitor_overhead" if asked.scope == "full" else f"monitor_overhead_{asked.scope}"
    summary = overheads(rows)
    print(results.write(claim, scope.device, rows, summary, asked, f"monitor_overhead {asked.scope}"))
    for key, value in summary.items():
        print(key, value)


if __name__ == "__main__":
    main()

"""Claim: sparsity-adaptive layers never slow a training down, and its loss goes the way of the dense one's.

Two copies of a network train on the same batches in strict fp32: the library's, and one whose convolutions choose
between the library's product and those without zeros, by times of their own that were taken after a warm-up, and by
densities that a monitor at its sampled pace brings them. Rounds take turns; their steps are timed as one trains. Beside
that stand steps in which the library is told to be deterministic: where every choice is dense, losses must be the same
bit by bit. Besides, zeros in all ReLUs' maps over training (figures 6.1, 6.2, 6.14 and 6.15 of Spartan's dissertation):
a monitor that looks at every map at every iteration, and one that samples, on the same training.

Images are CIFAR-10's where the environment's ``DATA`` names a folder that has them, else the Fashion-MNIST that comes
with this project. ``long`` watches two networks for 50,000 iterations, as long as the dissertation trains, and AlexNet
until its periods may have changed; an interrupted run goes on with the network that is not yet in its results file.
``smoke`` needs no GPU.

Run: python -m benchmarks.sparse_training full
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, count, islice
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import results, source
from benchmarks.processes import each_in_a_process
from benchmarks.published import statements
from benchmarks.saved_activations import deterministic
from benchmarks.sparse_layers import data_us, observed
from lamina import measure, run
from lamina.accelerate import convert
from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.methods.activation_sparsity import Sparse, functional
from lamina.accelerate.methods.activation_sparsity.cost import Line, Measured, PhaseImpls, union_density
from lamina.accelerate.methods.activation_sparsity.nn import SparseAdaptiveConv2d, choices_of
from lamina.accelerate.methods.activation_sparsity.tiles import columns_per_list
from lamina.accelerate.training.sparsity_monitor import Monitor, Observation, Parameters
from lamina.build.data import Dataset, loader, train_test
from lamina.build.models import create
from lamina.spec import Phase

PACE = Parameters(initial_period=50, duration=5)
"""Of the sampled monitor: often enough for trainings as short as these."""

LONG, EAGER = 10_000, 5
"""Iterations from which on they are replayed as a CUDA graph, and those in front of its capture."""

CALLS = 6
"""Calls of the wall clock in a round: one to see how long it takes, and five that count."""

EXACT = 12
"""Steps told to be deterministic."""

ONCE = measure.Repeat(min_samples=1, max_samples=1, min_time_s=0.0, max_time_s=0.0, warmup=0)
BRIEF = measure.Repeat(min_samples=3, max_samples=10, min_time_s=0.0, max_time_s=0.1, warmup=1)


@dataclass(frozen=True)
class Network:
    """A network at an input and a batch: steps of a call of the clock, rounds, or iterations that are watched."""

    name: str
    shape: tuple[int, int, int]
    batch: int
    steps: int
    rounds: int = 1


@dataclass(frozen=True)
class Scope:
    """What trains for its time, and what for its zeros, that many at the same time."""

    device: str
    trained: tuple[Network, ...]
    watched: tuple[Network, ...]
    pace: Parameters = PACE
    processes: int = 1


CIFAR, IMAGENET = (3, 32, 32), (3, 224, 224)
SCOPES = {
    "full": Scope(
        "cuda",
        (Network("alexnet", IMAGENET, 64, 10, 8), Network("vgg16", IMAGENET, 64, 1, 8)),
        (
            Network("cifarnet", CIFAR, 64, 500), Network("alexnet", IMAGENET, 64, 500),
            Network("vgg11_cifar", CIFAR, 128, 500), Network("vgg16", IMAGENET, 32, 120),
            Network("resnet10_cifar", CIFAR, 128, 500), Network("resnet18_cifar", CIFAR, 128, 500),
        ),
    ),
    "long": Scope(  # as long as the dissertation trains, at its parameters: periods grow, and maps hibernate
        "cuda", (),
        (
            Network("cifarnet64", CIFAR, 128, 50_000), Network("vgg11_cifar", CIFAR, 128, 50_000),
            Network("alexnet", IMAGENET, 64, 15_000),
        ),
        Parameters(), processes=2,
    ),
    "few": Scope("cuda", (Network("vgg16", IMAGENET, 64, 1, 2), Network("alexnet", IMAGENET, 64, 5, 3)), ()),
    "smoke": Scope("cpu", (Network("cifarnet64", CIFAR, 4, 1, 2),), (Network("lenet5", (1, 28, 28), 8, 12),),
                   Parameters(initial_period=4, duration=2)),
}  # fmt: skip


@cache
def images(folder: str | None) -> tuple[Dataset, str]:
    """What to train on, of a folder or of the package, and its name."""
    path = Path(folder) / "cifar10_jpeg.npz" if folder else None
    source = str(path) if path and path.exists() else "fashion-mnist"
    return train_test(source)[0], Path(source).stem


def batches(data: Dataset, network: Network, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches without end, made as large as the network wants them on the device."""
    channels, *size = network.shape
    native = channels, *data.shape[1:]
    for x, labels in chain.from_iterable(loader(data, native, network.batch, 0, epoch) for epoch in count()):
        if len(x) == network.batch:
            here = x.to(device)
            large = F.interpolate(here, size=tuple(size), mode="bilinear", align_corners=False)
            yield (here if here.shape == large.shape else large), labels.to(device)


class Training:
    """A network, its optimizer and the losses of its steps, which stay on the device."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        self.losses: list[Tensor] = []

    def step(self, x: Tensor, labels: Tensor) -> None:
        """One iteration."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), labels)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())

    def told(self) -> list[float]:
        """All losses so far."""
        return [float(loss) for loss in torch.stack(self.losses).cpu()] if self.losses else []


def sources(model: nn.Module, x: Tensor) -> dict[str, str]:
    """For each convolution but the first, the module that gave what it reads."""
    gave: dict[int, str] = {}
    read: dict[str, str] = {}
    kept: list[Tensor] = []  # no storage is used again meanwhile
    handles = []
    for name, module in model.named_modules():
        if any(module.children()):
            continue

        def before(_: nn.Module, args: Any, name: str = name) -> None:
            if args[0].untyped_storage().data_ptr() in gave:
                read[name] = gave[args[0].untyped_storage().data_ptr()]

        def after(_: nn.Module, args: Any, output: Tensor, name: str = name) -> None:
            kept.append(output)
            gave[output.untyped_storage().data_ptr()] = name

        handles += [module.register_forward_hook(after)]
        if isinstance(module, nn.Conv2d):
            handles += [module.register_forward_pre_hook(before)]
    try:
        with torch.no_grad():
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    return read


def inputs(model: nn.Module, names: Sequence[str], x: Tensor) -> dict[str, Tensor]:
    """What modules read."""
    seen: dict[str, Tensor] = {}
    handles = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, args, name=name: seen.__setitem__(name, args[0].detach().clone())
        )
        for name in names
    ]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return seen


def calibration(layer: SparseAdaptiveConv2d, x: Tensor, device: str) -> dict[Phase, Measured]:
    """The layer's own times over what it read; where some channels are zero, also with all zeros filled in.

    Wall time, as the steps are timed: where a training is launch-bound, kernels that take several launches lose.
    """
    if device == "cpu":
        return {}
    clock = measure.clock("wall", device)
    steps = tuple(layer.stride), layer.zero_padding, tuple(layer.dilation)

    def forward_us(one: Tensor, impl: Any) -> float:
        with torch.no_grad():
            call = partial(functional.conv2d, one, layer.weight, layer.bias, *steps, impls=PhaseImpls(impl))
            return clock.time(call, repeat=BRIEF).median_us

    def gradient_us(impl: Any) -> float:
        call = partial(functional.conv2d, impls=PhaseImpls("dense", impl))
        return data_us(clock, BRIEF, x, lambda leaf: call(leaf, layer.weight.detach(), None, *steps))

    window, known = Conv2dGeometry.of(layer.kernel_size, *steps), observed(x)
    together = columns_per_list(x.shape[0], x.shape[2], x.shape[3], window)
    share, united_us = union_density(known.union_density, together), forward_us(x, "row_union")
    union = Line(united_us, 0.0)
    if share is not None and share < 0.9:  # nearer points would tell of noise
        union = Line.through((share, united_us), (1.0, forward_us(torch.where(x == 0, 1.0, x), "row_union")))
    nonzero = Line(0.0, forward_us(x, "nonzero") / max(known.density, 1e-3))
    forward = Measured(forward_us(x, "dense"), nonzero, union)
    gradient = None if window.strided else Line(gradient_us("row_union"), 0.0)
    return {Phase.FORWARD: forward, Phase.BACKWARD_DATA: Measured(gradient_us("dense"), None, gradient)}


def compared(data: Dataset, of: str, network: Network, scope: Scope) -> Iterator[dict[str, Any]]:
    """A row for the dense training and one for the adaptive one."""
    torch.manual_seed(0)
    stream, clock = batches(data, network, scope.device), measure.clock(
        "wall" if scope.device == "cuda" else "cpu", scope.device
    )  # fmt: skip
    plain = create(network.name, len(data.classes)).to(scope.device).train()
    adaptive, _ = convert(copy.deepcopy(plain), Sparse(), where=lambda name, layer: isinstance(layer, nn.Conv2d))
    kinds = {"dense": Training(plain), "adaptive": Training(adaptive)}
    first = next(stream)[0]
    reads = sources(adaptive, first)
    times: dict[str, list[float]] = {kind: [] for kind in kinds}

    def steps(training: Training, some: Iterator[tuple[Tensor, Tensor]]) -> None:
        for x, labels in islice(some, network.steps):
            training.step(x, labels)

    with Monitor(adaptive, PACE, modules=sorted({*reads.values()})) as monitor:
        for turn in range(network.rounds + 1):  # the first warms up
            mine = [next(stream) for _ in range(CALLS * network.steps)]
            for kind, training in kinds.items():
                torch.manual_seed(turn)
                # The CPU's clock may call more often; batches then come again.
                some = chain.from_iterable(mine for _ in count())
                took = clock.time(partial(steps, training, some), repeat=ONCE).median_us / network.steps
                if turn:
                    times[kind].append(took)
            if not turn:
                with monitor.paused():
                    seen = inputs(adaptive, [*reads], first)
                for name, source in reads.items():
                    layer: Any = adaptive.get_submodule(name)
                    layer.calibration = calibration(layer, seen.pop(name), scope.device)
                    layer.density = partial(monitor.latest, source)
        chosen = {
            name: {phase.value: choice.reason for phase, choice in each.items()}
            for name, each in choices_of(adaptive).items()
        }
        exact = told_exactly(plain, adaptive, [next(stream) for _ in range(EXACT)], monitor)
    dense_only = all(reason.startswith("dense") for each in chosen.values() for reason in each.values())
    more = {"choices": chosen, "all_dense": dense_only, "deterministic": exact}
    for kind, training in kinds.items():
        q1, _, q3 = quantiles(times[kind], n=4, method="inclusive")
        yield {
            "workload": network.name, "layer": network.name, "phase": "end_to_end", "precision": "fp32",
            "layout": "nchw", "impl": kind, "batch": network.batch, "timing": clock.name, "l2": "warm", "by": "lamina",
            "median_us": median(times[kind]), "q1_us": q1, "q3_us": q3, "n": len(times[kind]), "data": of,
            "over_dense": median(a / b for a, b in zip(times[kind], times["dense"], strict=True)),
            "losses": [round(loss, 5) for loss in training.told()],
            "rel_error": None, "unchecked": "losses stand beside each other",
        } | (more if kind == "adaptive" else {})  # fmt: skip


def told_exactly(
    plain: nn.Module, adaptive: nn.Module, some: Sequence[tuple[Tensor, Tensor]], monitor: Monitor
) -> dict[str, Any]:
    """Losses of both from the same parameters on, where the library is deterministic, and how far they are apart."""
    adaptive.load_state_dict(plain.state_dict())
    losses = []
    with monitor.paused(), run.precision_mode("fp32", autotune=False), deterministic():
        for model in (plain, adaptive):
            torch.manual_seed(7)
            training = Training(model)
            for x, labels in some:
                training.step(x, labels)
            losses.append(training.told())
    apart = max(abs(a - b) / abs(b) for a, b in zip(losses[1], losses[0], strict=True))
    return {"dense": losses[0], "adaptive": losses[1], "apart": apart, "same_bits": losses[0] == losses[1]}


def watched(data: Dataset, of: str, network: Network, scope: Scope) -> dict[str, Any]:
    """Densities of all ReLUs' maps over training, at every iteration and as they are sampled."""
    torch.manual_seed(0)
    stream = batches(data, network, scope.device)
    training = Training(create(network.name, len(data.classes)).to(scope.device).train())
    clock = measure.clock("wall" if scope.device == "cuda" else "cpu", scope.device)
    pace = scope.pace
    took: list[float] = []
    with Monitor(training.model, exhaustive=True) as whole, Monitor(training.model, pace) as sampled:
        step: Callable[[Tensor, Tensor], None] = training.step
        for iteration, (x, labels) in enumerate(islice(stream, network.steps)):
            if iteration == EAGER and network.steps >= LONG and scope.device == "cuda":
                step = captured(training, (whole, sampled), x, labels)
            step(x, labels)
        for monitor in (whole, sampled):
            monitor.finish()
        seen, some = whole.take(), sampled.take()
        x, labels = next(stream)
        for _ in range(3):
            took.append(clock.time(partial(training.step, x, labels), repeat=ONCE).median_us)
    maps = list(dict.fromkeys(each.name for each in seen))
    every, last = max(1, network.steps // 50), seen[-10 * len(maps) :]
    q1, middle, q3 = quantiles(took, n=4, method="inclusive")
    return {
        "workload": network.name, "layer": network.name, "phase": "end_to_end", "precision": "fp32", "layout": "nchw",
        "impl": "watched[exhaustive]", "batch": network.batch, "timing": clock.name, "l2": "warm", "by": "lamina",
        "median_us": middle, "q1_us": q1, "q3_us": q3, "n": len(took), "data": of, "iterations": network.steps,
        "rel_error": None, "unchecked": "a monitor only reads; its counts are held to counts by hand in its tests",
        "every": every, "pace": [pace.initial_period, pace.duration],
        "densities": {n: [round(o.density, 4) for o in seen if o.name == n and not o.iteration % every] for n in maps},
        "unions": {n: round(fmean(o.union_density[32] for o in last if o.name == n), 4) for n in maps},
        "clustering": {n: round(fmean(o.clustering for o in last if o.name == n), 4) for n in maps},
        "dead_channels": {n: [o.dead_channels for o in seen if o.name == n][-1] for n in maps},
        "sampled": {n: [[o.iteration, round(o.density, 4)] for o in some if o.name == n] for n in maps},
        "trend_apart": {n: round(apart(seen, some, n, pace.duration), 4) for n in maps},
    }  # fmt: skip


def captured(
    training: Training, monitors: Sequence[Monitor], x: Tensor, labels: Tensor
) -> Callable[[Tensor, Tensor], None]:
    """One iteration as a CUDA graph, in which all monitors count: launch overhead is most of a small network's step."""
    held_x, held_labels = x.clone(), labels.clone()
    graph = torch.cuda.CUDAGraph()
    training.optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        F.cross_entropy(training.model(held_x), held_labels).backward()
        training.optimizer.step()

    def step(x: Tensor, labels: Tensor) -> None:
        held_x.copy_(x)
        held_labels.copy_(labels)
        with ExitStack() as watching:
            for monitor in monitors:
                watching.enter_context(monitor.replay())
            graph.replay()

    return step


def apart(seen: Sequence[Observation], some: Sequence[Observation], name: str, duration: int) -> float:
    """How far a sampled trend is from the whole one, on average over iterations.

    The sampled trend goes straight from the mean of one monitoring process to the next's; the whole one is the mean
    over as many iterations as a process observes.
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


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Time over dense, how far losses are apart, and densities at the end."""
    found: dict[str, Any] = {}
    for row in rows:
        if row["impl"] == "adaptive":
            found[f"adaptive over dense: {row['workload']}"] = {
                "time of a step:": round(row["over_dense"], 4),
                "all choices dense:": row["all_dense"],
                "losses the same bit by bit:": row["deterministic"]["same_bits"],
                "losses apart:": row["deterministic"]["apart"],
            }
        elif "densities" in row:
            last = {name: values[-1] for name, values in row["densities"].items()}
            found[f"zeros while training: {row['workload']}"] = {
                "mean density at the end:": round(fmean(last.values()), 3),
                "least:": min(last.values()),
                "sampled trend apart, at most:": max(row["trend_apart"].values()),
            }
    return found


def earlier(claim: str, device: str, folder: Path) -> list[dict[str, Any]]:
    """The rows that this commit has measured before, so that an interrupted benchmark goes on with the next network."""
    commit = source.commit()
    if commit.endswith(source.DIRTY):
        return []
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"{claim}_*.json"))]
    wanted = claim, commit, measure.environment(device).device
    return [
        row
        for one in documents
        if (one["claim"], one["provenance"]["commit"], one["provenance"]["device"]) == wanted
        for row in one["rows"]
    ]


def main() -> None:
    asked = results.arguments("sparse_training", scope=tuple(SCOPES))
    scope, rows = SCOPES[asked.scope], list[dict[str, Any]]()
    claim = "sparse_training" if asked.scope == "full" else f"sparse_training_{asked.scope}"
    rows += earlier(claim, scope.device, asked.output)
    done = {(row["workload"], "densities" in row) for row in rows}
    trained = [(asked.scope, one) for one in scope.trained if (one.name, False) not in done]
    left = [one for one in scope.watched if (one.name, True) not in done]
    zeros = [(asked.scope, one, index) for index, one in enumerate(left)]
    for some in chain(each_in_a_process(rows_of, trained, 1), each_in_a_process(rows_of, zeros, scope.processes)):
        rows += some
        print(*[*summary(rows).items()][-1], flush=True)
        # After each network, so that an end before the last one leaves what there is.
        found = summary(rows) | {"printed and ours": statements("activation-zeros", rows)}
        path = results.write(claim, scope.device, rows, found, asked, f"sparse_training {asked.scope}")
        print(path, flush=True)
        if scope.device == "cuda":
            torch.cuda.empty_cache()


def rows_of(name: str, network: Network, index: int = 0) -> list[dict[str, Any]]:
    """The rows of a network of a scope, which trains for its time or for its zeros, on one of the GPUs there are."""
    scope, (data, of) = SCOPES[name], images(os.environ.get("DATA"))
    if scope.device == "cuda":
        torch.cuda.set_device(index % torch.cuda.device_count())
    with run.precision_mode("fp32") if scope.device == "cuda" else nullcontext():
        if network in scope.trained:
            return [*compared(data, of, network, scope)]
        return [watched(data, of, network, scope)]


if __name__ == "__main__":
    main()

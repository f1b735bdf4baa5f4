"""Claim: activations compressed between the passes take less memory, and give the same gradients.

Networks are first trained for a while, so that their maps have realistic zeros. Memory is what the allocator holds
after a forward pass; the peak of a step, without parameter gradients that accumulate; and the least memory limit under
which a step runs, found by lowering the limit. Short of memory, the library selects algorithms with smaller workspaces
and keeps them: the peak of a step after that is reported too, and so are the bytes that autograd saves, each storage
once and without parameters, as counted by separate hooks. Maps of fewer than ``min_elements`` elements are not
compressed. Gradients of ``bitmap`` must be bitwise those of plain autograd, with deterministic algorithms. Times are
those of an eager training step, of a step in a CUDA graph, without launch overhead, and of one with both passes in CUDA
graphs. The variants are timed interleaved. ``cpu`` and ``smoke``, which is short, need no GPU.

Run: python -m benchmarks.saved_activations full
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from statistics import median, quantiles
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile

from benchmarks import results
from lamina import measure, run
from lamina.accelerate.training.compressed_activations import (
    CompressedActivations,
    CompressedForward,
    compressed_activations,
)
from lamina.accelerate.training.compressed_activations.context import Kind
from lamina.build import DTYPES
from lamina.build.data import loader, train_test
from lamina.build.models import create
from lamina.errors import UnsupportedError

KINDS: tuple[Kind, ...] = ("bitmap", "ellpack")
GRAPHS: tuple[Kind | None, ...] = (None, "bitmap")
"""What can be captured in a CUDA graph: ELLPACK-DIB waits for the device."""
IN_GRAPH = measure.Repeat(min_samples=5, min_time_s=0.1, max_time_s=0.5, warmup=2)


@dataclass(frozen=True)
class Scope:
    """Which networks, their inputs and batches, and how many iterations they train before anything is measured."""

    device: str
    networks: tuple[tuple[str, tuple[int, int, int]], ...]
    batch: int
    iterations: int
    precisions: tuple[str, ...]
    repeat: measure.Repeat
    rounds: int = 2
    min_elements: int = 4096
    data: str = "fashion-mnist"


SCOPES = {
    "full": Scope(
        "cuda",
        (("alexnet", (3, 224, 224)), ("vgg16", (3, 224, 224)), ("resnet18", (3, 224, 224)), ("cifarnet", (3, 32, 32))),
        64, 60, ("fp32", "bf16"), rounds=5, min_elements=1 << 20,
        repeat=measure.Repeat(min_samples=1, max_samples=1, min_time_s=0.0, max_time_s=0.0, warmup=0),
    ),
    "cpu": Scope(
        "cpu", (("cifarnet64", (3, 32, 32)), ("vgg11_cifar", (3, 32, 32)), ("lenet5", (1, 28, 28))), 32, 100, ("fp32",),
        measure.Repeat(min_samples=1, max_time_s=0.0, min_time_s=0.0, warmup=1),
    ),
    "smoke": Scope(
        "cpu", (("lenet5", (1, 28, 28)),), 16, 10, ("fp32",),
        repeat=measure.Repeat(min_samples=1, max_samples=1, min_time_s=0.0, max_time_s=0.0, warmup=1),
    ),
}  # fmt: skip


def trained(name: str, shape: tuple[int, int, int], scope: Scope) -> tuple[nn.Module, Tensor, Tensor]:
    """A network after some iterations, and a batch it has not seen."""
    torch.manual_seed(0)
    data, _ = train_test(scope.data)
    model = create(name, len(data.classes)).to(scope.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    batches = chain.from_iterable(loader(data, shape, scope.batch, 0, epoch) for epoch in count())
    for _ in range(scope.iterations):
        x, labels = (part.to(scope.device) for part in next(batches))
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    x, labels = (part.to(scope.device) for part in next(batches))
    return model, x, labels


def held_after(forward: Callable[[], Tensor], device: str) -> int:
    """Bytes that a forward pass leaves allocated for the backward pass."""
    if device == "cuda":
        gc.collect()  # not within the forward pass, which would seem to hold less
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        loss = forward()
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated() - before
    else:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as session:
            loss = forward()
        events = getattr(session.profiler, "kineto_results").events()  # noqa: B009  (absent from torch's stubs)
        held = sum(event.nbytes() for event in events if event.name() == "[memory]")
    loss.backward()
    return int(held)


def saved_bytes(model: nn.Module, forward: Callable[[], Tensor], inputs: Tensor) -> int:
    """What plain autograd saves: each storage once, without parameters, buffers and the network's input."""
    known = {one.untyped_storage().data_ptr() for one in (*model.parameters(), *model.buffers(), inputs)}
    storages: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x.detach()

    with saved_tensors_hooks(pack, lambda x: x):
        loss = forward()
    loss.backward()
    return sum(nbytes for place, nbytes in storages.items() if place not in known)


@dataclass(frozen=True)
class Case:
    """A trained network and a batch; its forward pass in one of the kinds."""

    model: nn.Module
    x: Tensor
    labels: Tensor
    context: Any

    def forward(self, seeded: bool = True) -> Tensor:
        """The loss."""
        if seeded:  # which a graph cannot be
            torch.manual_seed(1)
        with self.context:
            return F.cross_entropy(self.model(self.x).float(), self.labels)

    def settled(self) -> Tensor:
        """The loss, when the device has told how many non-zeros all maps have."""
        loss = self.forward()
        if isinstance(self.context, CompressedActivations):
            self.context.held  # noqa: B018  (waits)
        return loss

    def step(self, seeded: bool = True) -> list[Tensor]:
        """The gradients."""
        return list(torch.autograd.grad(self.forward(seeded), list(self.model.parameters())))

    def graphed(self) -> Callable[[], object]:
        """A step whose passes are CUDA graphs of their own."""
        model: Any = torch.cuda.make_graphed_callables(CompressedForward(self.model, self.context), (self.x,))
        parameters = list(self.model.parameters())
        return lambda: torch.autograd.grad(F.cross_entropy(model(self.x).float(), self.labels), parameters)

    def added(self) -> None:
        """A step that adds its gradients to those that are there."""
        self.forward().backward()


def peak_of(step: Callable[[], object]) -> int:
    """Most bytes that a step held beside what was there before, its own results among them."""
    step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def least_of(step: Callable[[], object], most: int, within: int = 16 << 20) -> int:
    """Bytes, beside what was there before, that a step gets by with, where it holds ``most`` if it may."""
    before, whole = torch.cuda.memory_allocated(), torch.cuda.get_device_properties("cuda").total_memory
    low, high = 0, 2 * most  # memory may be in pieces
    while high - low > within:
        middle = (low + high) // 2
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((before + middle) / whole)
        try:
            step()
            torch.cuda.synchronize()
            high = middle
        except torch.OutOfMemoryError:
            low = middle
    torch.cuda.set_per_process_memory_fraction(1.0)
    return high


def memory_of(cases: Mapping[Kind | None, Case]) -> dict[Kind | None, dict[str, int]]:
    """What a step of each kind holds at most, what it gets by with, and what it holds after that."""
    for parameter in cases[None].model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    steps = {kind: case.added for kind, case in cases.items()}
    peaks = {kind: peak_of(step) for kind, step in steps.items()}
    least = {kind: least_of(step, peaks[kind]) for kind, step in steps.items()}
    return {
        kind: {"peak_bytes": peaks[kind], "least_bytes": least[kind], "lean_peak_bytes": peak_of(step)}
        for kind, step in steps.items()
    }


def measured(name: str, shape: tuple[int, int, int], scope: Scope, precision: str) -> Iterator[dict[str, Any]]:
    """Plain autograd and both kinds: memory, gradients and the time of a forward and backward pass."""
    with run.precision_mode(precision):
        model, x, labels = trained(name, shape, scope)
    model, x = model.to(DTYPES[precision]), x.to(DTYPES[precision])
    state = {key: value.clone() for key, value in model.state_dict().items()}
    clock = measure.clock("wall" if scope.device == "cuda" else "cpu", scope.device)  # packing waits for the device
    exact: list[Tensor] = []
    cases: dict[Kind | None, Case] = {
        kind: Case(
            model, x, labels, compressed_activations(kind, min_elements=scope.min_elements) if kind else nullcontext()
        )
        for kind in (None, *KINDS)
    }
    rows: dict[Kind | None, dict[str, Any]] = {}
    for kind, case in cases.items():
        model.load_state_dict(state)
        with run.precision_mode(precision, autotune=False), deterministic():
            gradients = case.step()
        exact = exact or gradients
        model.zero_grad()
        rows[kind] = row = {
            "workload": name, "layer": name, "phase": "step", "precision": precision, "layout": "nchw",
            "impl": f"saved[{kind}]" if kind else "dense", "batch": scope.batch, "l2": "warm", "by": "lamina",
            "iterations": scope.iterations, "data": scope.data, "least": scope.min_elements,
        }  # fmt: skip
        if kind:
            row |= {"rel_error": run.relative_error(gradients, exact), "against": "plain autograd"}
        else:
            row |= {"rel_error": None, "unchecked": "others are held to it"}
        del gradients
        with run.precision_mode(precision):
            case.step()
            row["held_bytes"] = held_after(case.settled, scope.device)
            model.zero_grad()
            if kind:
                held = case.context.held
                row |= {"maps": held.tensors, "maps_dense_bytes": held.dense_bytes, "maps_held_bytes": held.held_bytes}
            else:
                row["saved_bytes"] = saved_bytes(model, case.forward, x)
                model.zero_grad()
    exact.clear()
    times: dict[Kind | None, list[float]] = {kind: [] for kind in cases}
    graphs: dict[Kind | None, list[float]] = {kind: [] for kind in GRAPHS if scope.device == "cuda"}
    with run.precision_mode(precision):
        for _ in range(scope.rounds):
            for kind, case in cases.items():
                times[kind].append(clock.time(partial(case.step, seeded=False), repeat=scope.repeat).median_us)
        for kind in GRAPHS if graphs else ():
            graph, step = measure.clock("graph", scope.device), partial(cases[kind].step, seeded=False)
            try:
                graphs[kind].append(graph.time(step, repeat=IN_GRAPH).median_us)
            except UnsupportedError as error:
                rows[kind]["graph"] = str(error)
                continue
            if kind:
                cases[kind].context.check()
        passes = passes_of(cases, scope) if graphs else {}
    # Last, because the library keeps to what it then chooses.
    with run.precision_mode(precision, autotune=False):
        memory = memory_of(cases) if scope.device == "cuda" else {}
    for what, row in rows.items():
        q1, _, q3 = quantiles(times[what], n=4, method="inclusive")
        yield row | dict.fromkeys(("peak_bytes", "least_bytes", "lean_peak_bytes")) | memory.get(what, {}) | {
            "timing": clock.name, "median_us": median(times[what]), "q1_us": q1, "q3_us": q3, "n": len(times[what]),
            "over_dense": over(times, what),
            "graph_over_dense": over(graphs, what) if all(graphs.get(one) for one in (None, what)) else None,
            "passes_us": median(passes[what]) if passes.get(what) else None,
            "passes_over_dense": over(passes, what) if passes.get(what) else None,
        }  # fmt: skip


def passes_of(cases: Mapping[Kind | None, Case], scope: Scope) -> dict[Kind | None, list[float]]:
    """Times of steps whose passes are graphs that the host launches; kinds take turns."""
    clock, times = measure.clock("wall", scope.device), {kind: list[float]() for kind in GRAPHS}
    steps = {kind: cases[kind].graphed() for kind in GRAPHS}
    for _ in range(scope.rounds):
        for kind in GRAPHS:
            times[kind].append(clock.time(steps[kind], repeat=scope.repeat).median_us)
    steps.clear()
    gc.collect()  # frees what graphs hold
    return times


def over(times: Mapping[Kind | None, list[float]], what: Kind | None) -> float:
    """How long a kind takes over plain autograd, of turns beside each other."""
    return median(mine / plain for mine, plain in zip(times[what], times[None], strict=True))


@contextmanager
def deterministic() -> Iterator[None]:
    """The library's convolutions give the same bits each time within."""
    before, torch.backends.cudnn.deterministic = torch.backends.cudnn.deterministic, True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


def share(row: Mapping[str, Any], plain: Mapping[str, Any], what: str) -> float | None:
    """A row's bytes over plain autograd's; None where unknown."""
    bytes_ = row[f"{what}_bytes"]
    return None if bytes_ is None else round(bytes_ / plain[f"{what}_bytes"], 3)


def shares(rows: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Held after the forward pass and time of a step, over plain autograd's; and of the sparse maps alone."""
    found = {}
    for plain in (row for row in rows if row["impl"] == "dense"):
        for row in rows:
            same = (row["workload"], row["precision"]) == (plain["workload"], plain["precision"])
            if same and row is not plain:
                maps = row["maps_held_bytes"] / row["maps_dense_bytes"] if row["maps_dense_bytes"] else 1.0
                part = partial(share, row, plain)
                found[f"over dense: {row['workload']}, {row['precision']}, {row['impl']}"] = {
                    "held after the forward pass:": part("held"),
                    "most held within a step:": part("peak"),
                    "the same with small workspaces:": part("lean_peak"),
                    "least that a step gets by with:": part("least"),
                    "maps with zeros alone:": round(maps, 3),
                    "time of a step:": round(row["over_dense"], 3),
                    "in a CUDA graph:": row["graph_over_dense"] and round(row["graph_over_dense"], 3),
                    "with passes as graphs:": row["passes_over_dense"] and round(row["passes_over_dense"], 3),
                    "gradients off by:": row["rel_error"],
                }
    return found


def main() -> None:
    asked = results.arguments("saved_activations", scope=tuple(SCOPES))
    scope, rows = SCOPES[asked.scope], list[dict[str, Any]]()
    claim = "saved_activations" if asked.scope == "full" else f"saved_activations_{asked.scope}"
    for name, shape in scope.networks:
        for precision in scope.precisions:
            rows += measured(name, shape, scope, precision)
            for key, value in [*shares(rows).items()][-len(KINDS) :]:
                print(key, value, flush=True)
            # After each network, so that an end before the last one leaves what there is.
            path = results.write(claim, scope.device, rows, shares(rows), asked, f"saved_activations {asked.scope}")
            if scope.device == "cuda":
                torch.cuda.empty_cache()
    print(path)


if __name__ == "__main__":
    main()

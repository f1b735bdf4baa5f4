"""Claim: networks without the inputs they can do without infer faster end to end, within an accuracy budget.

The six networks of DeftNN (Hill et al., MICRO 2017, table 1), with what stands in for their data. Four of them are
AlexNet's trunk with another number of classes: here the zoo's AlexNet on images of Caltech-101, enlarged to 224 x 224,
which are too few for the accuracies that are published:

    alexnet          IMC   all 101 classes in place of ImageNet's 1000
    flickr-style     FLS   the 20 largest classes
    flower-species   OXF   all classes with at most 30 training samples each, as its own data set has few of each
    sos-cnn          SOS   the 5 largest classes
    cifarnet         C10   CIFAR-10
    lenet5           DIG   MNIST

Each has settings of its own in ``TASKS``: training, tuning, layers, keep ratios and accuracy budget. The paper tunes
its correlation threshold for each network until no accuracy is lost, and shows a front of accuracy and speedup for each
(sections 5.2 and 5.6); neither thresholds nor training settings are printed.

Each network is trained and goes through ``lamina deft``, beside the dense network tuned for as many epochs, and others
pruned to its size and tuned as long. The front of the search and every point that was tuned are kept. Then inference is
timed as CUDA graphs at three batch sizes and precisions: the dense network in its better layout, the result by the
library, the result with every layer computed the way that is the fastest, weights pruned by magnitude in the library's
sparse products, and channels pruned to as many multiplications where that package is installed. One choice of inputs,
made in TF32 at the largest batch, serves all.

There is one network at a time on each GPU. Each finished network is kept in ``--work``, so that an interrupted run goes
on with the others: also in the middle of a network, by its checkpoint and the journal of its search. ``--limit`` starts
no further network, and no timings, after so many seconds. ``smoke`` trains for an epoch on few samples, also on a CPU.

Run: python -m benchmarks.deft_networks long --data FOLDER
     python -m benchmarks.deft_networks long --data FOLDER --only lenet5 --only cifarnet --limit 1500
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import results, source
from benchmarks.gpus import on_every_gpu
from lamina import build, load, measure, pipeline, run
from lamina.accelerate import tune
from lamina.accelerate.methods.elimination.pareto import Point
from lamina.build.data import load as read
from lamina.errors import LaminaError, UnsupportedError
from lamina.pipeline.convert import selector
from lamina.pipeline.deft import pruning
from lamina.pipeline.deft.choosing import describe
from lamina.pipeline.deft.flow import CHECKPOINT, deft
from lamina.pipeline.deft.records import DeftConfig
from lamina.pipeline.deft.trained import pretrained
from lamina.record import Epoch
from lamina.spec.training import Training
from lamina.store import open_store

BATCHES = (1, 16, 128)
PRECISIONS = ("fp32", "tf32", "bf16")
REPEAT = measure.Repeat(min_samples=10, min_time_s=0.02, max_time_s=0.15)

CALIBRATION = 2000
"""Samples to choose by; a fifth of those to train on, where that is fewer."""

FASTEST = "deft[ways=fastest]"

COMPARED = pruning.installed("magnitude", "iterative-magnitude", "dense", "channels")
"""Tuned for as many epochs as the result; pruned channels where that package is installed."""

EVERY = 1_000_000
"""More samples than there are."""

FLOW, ROWS = "flow.json", "rows.json"
"""Files of a finished network."""
WORK = Path(tempfile.gettempdir()) / "lamina_deft_networks"


@dataclass(frozen=True)
class Task:
    """A network of the zoo, the data that it is trained on, and how it is pruned."""

    name: str
    zoo: str
    file: str
    classes: int
    epochs: int
    tuning: int
    """Epochs of tuning: of each point that is tried, and of what the result is compared with."""

    keep_ratios: tuple[float, ...]
    layers: tuple[str, ...]
    """Layers that are pruned; the first convolution reads an image."""

    align: int
    drop: float
    """Points that may be lost on the samples that are chosen by: no more than those samples tell apart from none."""

    learning_rate: float
    batch: int = 64
    most: int = EVERY
    """Training samples."""

    each: int = EVERY
    """Training samples of a class."""

    augment: bool = True
    seed: int = 0


TRUNK = ("features.[3-9]", "features.10", "classifier.*")
"""AlexNet's layers after the first."""

TASKS = (
    # Hardest: 101 classes from 57 samples on average. Pruning below a half never came back within the budget.
    Task("alexnet", "alexnet", "caltech101_96.npz", 101, epochs=30, tuning=12, keep_ratios=(0.875, 0.75, 0.5),
         layers=TRUNK, align=32, drop=0.5, learning_rate=3e-4),
    Task("flickr-style", "alexnet", "caltech101_96.npz", 20, epochs=24, tuning=10, keep_ratios=(0.75, 0.5, 0.25),
         layers=TRUNK, align=32, drop=0.5, learning_rate=3e-4),
    # The fewest samples: more epochs, smaller batches, and a budget of six of the 580 that are chosen by.
    Task("flower-species", "alexnet", "caltech101_96.npz", 101, epochs=48, tuning=16, keep_ratios=(0.75, 0.5, 0.25),
         layers=TRUNK, align=32, drop=1.0, learning_rate=2e-4, batch=32, each=30),
    # Five easy classes: a tight budget leaves room for the strongest pruning.
    Task("sos-cnn", "alexnet", "caltech101_96.npz", 5, epochs=24, tuning=10, keep_ratios=(0.5, 0.25, 0.125),
         layers=TRUNK, align=32, drop=0.3, learning_rate=2e-4),
    Task("cifarnet", "cifarnet", "cifar10_jpeg.npz", 10, epochs=24, tuning=8, keep_ratios=(0.75, 0.5, 0.25),
         layers=("features.4", "features.8", "classifier"), align=8, drop=0.5, learning_rate=1e-3, batch=128),
    Task("lenet5", "lenet5", "mnist.npz", 10, epochs=16, tuning=6, keep_ratios=(0.75, 0.5, 0.25, 0.125),
         layers=("features.3", "classifier.*"), align=4, drop=0.1, learning_rate=1e-3, batch=128, augment=False),
)  # fmt: skip
SMALL = ("cifarnet", "lenet5")
LENGTHS = ("long", "short", "smoke")
SMOKE = 600
"""Training samples of a smoke test."""


def shortened(task: Task, length: str) -> Task:
    """The task as it is run: ``short`` for a quarter of the epochs, ``smoke`` for one on few samples."""
    if length == "smoke":
        most, ratios = min(task.most, SMOKE), task.keep_ratios[:2]
        return replace(task, epochs=1, tuning=1, most=most, keep_ratios=ratios, drop=100.0)
    divisor = {"long": 1, "short": 4}[length]
    return replace(task, epochs=max(1, task.epochs // divisor), tuning=max(1, task.tuning // divisor))


def samples(task: Task, data: Path, folder: Path) -> Path:
    """The file of a task's samples: its largest classes, and its first training samples of each and in all."""
    arrays: dict[str, Any] = {}
    wanted: Tensor | None = None
    for split in ("train", "test"):
        whole = read(data / task.file, split)
        if wanted is None:
            wanted = torch.bincount(whole.y).argsort(descending=True, stable=True)[: task.classes].sort().values
        places = torch.isin(whole.y, wanted).nonzero()[:, 0]
        if split == "train":
            earlier = torch.zeros(len(places), dtype=torch.int64)  # samples of the same class before each
            for label in wanted:
                own = whole.y[places] == label
                earlier[own] = torch.arange(int(own.sum()))
            places = places[earlier < task.each]
        places = places[: task.most]
        arrays[f"x_{split}"] = whole.x[places].permute(0, 2, 3, 1).contiguous().numpy()
        arrays[f"y_{split}"] = torch.searchsorted(wanted, whole.y[places]).numpy()
        arrays["class_names"] = np.array([whole.classes[int(place)] for place in wanted])
    path = folder / "samples.npz"
    np.savez(path, **arrays)
    return path


def folder_of(task: Task, work: Path, device: str) -> Path:
    """Where the work on a task is kept: equal settings on equal devices share it."""
    asked = [asdict(task), measure.environment(measure.resolve(device)).device, list(COMPARED)]
    return work / f"{task.name}-{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]}"


def kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a file holds, or else what is made now and written to it at once, with its commit."""
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(found, dict)
        return found
    made = make() | {"commit": source.commit()}
    text, beside = json.dumps(made, indent=1), path.with_suffix(".part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
    return made


def finished(task: Task, work: Path, device: str) -> dict[str, Any] | None:
    """The flow and the rows of a network, if both are done."""
    flow, rows = (folder_of(task, work, device) / name for name in (FLOW, ROWS))
    if not (flow.exists() and rows.exists()):
        return None
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in (("flow", flow), ("timed", rows))}


def whole(
    task: Task, data: Path, work: Path, device: str, limit: float, watch: measure.Stopwatch
) -> list[dict[str, Any]]:
    """Train a network, let it go through the flow and time it, in a process that has a device for itself.

    Returns what is left undone and why, or nothing.
    """

    def say(*words: object) -> None:
        print(f"{watch.seconds:6.0f} s  {task.name}:", *words, flush=True)

    folder = folder_of(task, work, device)
    folder.mkdir(parents=True, exist_ok=True)
    parts = {
        FLOW: partial(flow_of, task, data, folder, device, say),
        ROWS: partial(rows_of, task, folder, device, say),
    }
    for name, make in parts.items():
        if not (folder / name).exists() and watch.seconds > limit:
            say(f"not started after {limit:.0f} s: {name}")
            return [{"network": task.name, "undone": f"{name}: the limit of {limit:.0f} s had passed"}]
        try:
            kept(folder / name, make)
        except (LaminaError, RuntimeError) as error:
            say(f"failed: {type(error).__name__}: {error}")
            return [{"network": task.name, "undone": f"{name}: {type(error).__name__}: {error}"[:300]}]
    say("done")
    return []


def flow_of(task: Task, data: Path, folder: Path, device: str, say: Callable[..., None]) -> dict[str, Any]:
    """Train a network and let it go through the flow; what the flow found."""
    target, _ = pipeline.find(task.zoo, {}, None)
    settings = Training(
        epochs=task.epochs, batch=task.batch, optimizer="adamw", learning_rate=task.learning_rate, seed=task.seed,
        augment=task.augment, precision="fp32" if device == "cpu" else "bf16",
    )  # fmt: skip
    asked = DeftConfig(
        keep_ratios=task.keep_ratios, layers=task.layers, align=task.align, max_accuracy_drop=task.drop, format="none",
        tuning=task.tuning, calibration=CALIBRATION, batch=max(BATCHES),
        precision="fp32" if device == "cpu" else "tf32", compare=COMPARED,
    )  # fmt: skip
    watch = measure.Stopwatch()

    def told(what: object) -> None:
        if isinstance(what, Epoch):
            say(f"epoch {what.epoch} ended after {what.seconds:.1f} s with {100 * what.test_accuracy:.2f} %")
        elif isinstance(what, str):
            say(what)

    with open_store(folder / "lamina.db") as store:
        outcome = deft(
            target, str(samples(task, data, folder)), settings, store, folder, asked, cache=folder / "cache",
            device=device, resume=True, watch=told,
        )  # fmt: skip
    networks = (outcome.dense, outcome.result, *outcome.compared)
    return {
        "accuracy": {one.name: round(one.test_accuracy, 2) for one in networks},
        "accuracy on what was chosen by": {one.name: round(one.calibration_accuracy, 2) for one in networks},
        "multiplications": {one.name: one.multiplications for one in networks},
        "kept": {layer.layer: f"{layer.kept} of {layer.inputs}" for layer in outcome.layers},
        "front before tuning": _points(outcome.front), "tuned": _points(outcome.tuned),
        "remarks": list(outcome.remarks), "settings": asdict(task), "seconds": round(watch.seconds, 1),
    }  # fmt: skip


def _points(points: tuple[Point, ...]) -> list[dict[str, Any]]:
    """Points of a front: what each layer keeps, the accuracy on what was chosen by, and the speedup."""
    return [
        {"keep ratios": describe(one.choice), "accuracy": round(one.accuracy, 2), "speedup": round(1 / one.latency, 3)}
        for one in points
    ]


def deployed(
    network: nn.Module, x: Tensor, precision: str, layout: str, device: torch.device
) -> tuple[nn.Module, Tensor]:
    """A copy of a network and its input, ready to be timed."""
    x = x.to(device, build.DTYPES[precision])
    x = x.contiguous(memory_format=torch.channels_last) if layout == "nhwc" else x
    return build.to_precision(copy.deepcopy(network), precision, device, layout), x


class SparseLinear(nn.Module):
    """A linear layer whose weights that are not zero go through the library's sparse product."""

    def __init__(self, dense: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = dense.weight.detach().to_sparse_csr(), dense.bias

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight @ x.T).T + self.bias


class SparseConv(nn.Module):
    """A convolution as the sparse product with its input, unfolded."""

    def __init__(self, dense: nn.Conv2d) -> None:
        super().__init__()
        self.dense, self.weight = dense, dense.weight.detach().flatten(1).to_sparse_csr()

    def forward(self, x: Tensor) -> Tensor:
        layer = self.dense
        sizes: Any = layer.kernel_size, layer.dilation, layer.padding, layer.stride
        y = self.weight @ F.unfold(x, *sizes).transpose(0, 1).flatten(1)
        height, width = (
            (size + 2 * margin - taps) // step + 1
            for size, margin, taps, step in zip(x.shape[2:], sizes[2], sizes[0], sizes[3], strict=True)
        )
        bias: Any = layer.bias
        image: Tensor = y.unflatten(1, (len(x), height, width)).transpose(0, 1) + bias[:, None, None]
        return image


def sparse(model: nn.Module) -> nn.Module:
    """A copy whose layers with zeros among their weights are sparse."""
    result = copy.deepcopy(model)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and bool((module.weight == 0).any()):
            parent, _, last = name.rpartition(".")
            kind: Any = SparseLinear if isinstance(module, nn.Linear) else SparseConv
            setattr(result.get_submodule(parent), last, kind(result.get_submodule(name)))
    return result


def timed(clock: measure.Clock, call: Callable[[], object]) -> dict[str, Any]:
    """The columns of a timing."""
    return {"timing": clock.name} | results.quartiles(clock.time(call, repeat=REPEAT))


def networks(
    task: Task, dense: nn.Module, ours: nn.Module, on_gpu: bool, say: Callable[..., None]
) -> Iterator[tuple[str, str, nn.Module]]:
    """What is compared: a name, a layout, a network in float32 on the CPU."""
    for layout in ("nchw", "nhwc"):
        yield "dense", layout, dense
        yield "deft", layout, ours
    if on_gpu:
        yield FASTEST, "nhwc", ours
    example = torch.zeros(1, *build.from_zoo(build.models.ZOO[task.zoo]).inputs[0].shape)
    thinned, finish = pruning.pruned("magnitude", dense, example, ours)
    finish()
    yield "magnitude", "nchw", thinned
    try:
        with torch.enable_grad():
            narrow = pruning.pruned("channels", dense, example, ours)[0]
        yield "channels", "nhwc", narrow
    except LaminaError as error:
        say("channels:", error)


def rows_of(task: Task, folder: Path, device: str, say: Callable[..., None]) -> dict[str, Any]:
    """The rows of one network, each printed as it is measured."""
    rows = []
    for row in timings(task, folder, measure.resolve(device), say):
        rows.append(row)
        shown = row["impl"], row["precision"], row["layout"], row["batch"], round(row.get("median_us", 0), 1)
        say(*shown, row["rel_error"])
    return {"rows": rows}


@torch.no_grad()
def timings(task: Task, folder: Path, device: torch.device, say: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """Each way to run a network, at each batch size, in each precision."""
    on_gpu = device.type == "cuda"
    graph = measure.GraphClock(device) if on_gpu else None
    clock = graph or measure.clock("cpu", device)
    target, _ = pipeline.find(task.zoo, {}, None)
    dense = pretrained(target.make(task.classes), folder / CHECKPOINT).eval()
    example = torch.randn(max(BATCHES), *target.inputs[0].shape)
    for name, layout, network in networks(task, dense, load(folder), on_gpu, say):
        exact: Tensor | None = None
        for precision in PRECISIONS if on_gpu else ("fp32",):
            if precision != "fp32" and (name == "magnitude" or (name, layout) == ("deft", "nchw")):
                continue
            with run.precision_mode(precision), torch.cuda.stream(graph.stream) if graph else nullcontext():
                for batch in BATCHES:
                    row: dict[str, Any] = {
                        "workload": task.name, "layer": "whole", "phase": "forward", "impl": name,
                        "precision": precision, "layout": layout, "batch": batch, "timing": clock.name, "l2": "warm",
                        "by": "lamina", "rel_error": None,
                    }  # fmt: skip
                    if name == "magnitude":
                        row["unchecked"] = "the library's products; what pruning costs is told in points of accuracy"
                    try:
                        if name == "magnitude":
                            model, x = sparse(network.to(device)), example[:batch].to(device)
                        else:
                            model, x = deployed(network, example[:batch], precision, layout, device)
                        if name == FASTEST:
                            model, chosen = tune(model, x, selector(device, "graph", training=False), dense=True)
                            row["selected"] = {layer: selection.impl for layer, selection in chosen.items()}
                        if name != "magnitude":
                            if exact is None:
                                exact = copy.deepcopy(network).double().to(device)(example[:1].double().to(device))
                            row["rel_error"] = run.relative_error([model(x)[:1]], [exact])
                        try:
                            yield row | timed(clock, partial(model, x))
                        except UnsupportedError:  # it cannot be captured
                            yield row | timed(measure.clock("events", device), partial(model, x))
                    except (LaminaError, RuntimeError) as error:
                        yield row | {"outcome": "failed", "reason": f"{type(error).__name__}: {error}"[:300]}


def _named(row: dict[str, Any]) -> str:
    return " ".join(str(row[key]) for key in ("workload", "impl", "precision", "layout", "batch"))


def speedups(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Over dense of the same precision and over fp32 dense, each in its better layout; and geometric means."""
    best: dict[tuple[str, str, str, int], float] = {}
    for row in rows:
        if "median_us" in row:
            key = row["workload"], row["impl"], row["precision"], row["batch"]
            best[key] = min(best.get(key, math.inf), row["median_us"])
    for (name, impl, precision, batch), us in list(best.items()):
        if impl == FASTEST:  # which the library's are among
            key = name, impl, precision, batch
            best[key] = min(us, best.get((name, "deft", precision, batch), math.inf))
    gains: dict[str, dict[str, float]] = {}
    for (name, impl, precision, batch), us in best.items():
        for base in dict.fromkeys((precision, "fp32")):
            dense = best.get((name, "dense", base, batch))
            if dense and (impl, precision) != ("dense", base):
                gains.setdefault(f"speedup over {base} dense: {impl}, {precision}, batch {batch}", {})[name] = (
                    dense / us
                )
    means: dict[str, Any] = {}
    for title, each in gains.items():
        large = [value for name, value in each.items() if name not in SMALL]
        means[title] = {name: round(value, 3) for name, value in each.items()}
        if large:
            mean = math.exp(sum(map(math.log, large)) / len(large))
            means[title]["geometric mean of AlexNet's"] = round(mean, 3)
    return means


def written(done: Mapping[str, Mapping[str, Any]], undone: Mapping[str, str], asked: argparse.Namespace) -> Path:
    """The results file of all finished networks, by name, beside what is left undone and why."""
    rows = [row for one in done.values() for row in one["timed"]["rows"]]
    summary: dict[str, Any] = {
        f"flow: {name}": {key: value for key, value in one["flow"].items() if key != "commit"}
        for name, one in done.items()
    }
    accuracies = {name: one["flow"]["accuracy"] for name, one in done.items()}
    summary["points of accuracy lost on test samples"] = {
        name: round(one["dense"] - one["deft"], 2) for name, one in accuracies.items()
    }
    summary["points of accuracy lost to the dense network tuned as long"] = {
        name: round(one["dense-tuned"] - one["deft"], 2) for name, one in accuracies.items()
    }
    summary["commits"] = {name: one["timed"]["commit"] for name, one in done.items()}
    whole = [row for row in rows if "median_us" in row]
    failed = {f"failed: {_named(row)}": row["reason"] for row in rows if "median_us" not in row}
    claim = "deft_networks" if asked.length == "long" else f"deft_networks_{asked.length}"
    claim += "" if len(done) == len(TASKS) else "_part"
    command = " ".join([f"deft_networks {asked.length} --data FOLDER", *(f"--only {one}" for one in asked.only or ())])
    left = {f"undone: {name}": reason for name, reason in undone.items()}
    return results.write(claim, asked.device, whole, speedups(whole) | summary | failed | left, asked, command)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deft_networks", description=__doc__.split("\n")[0])
    parser.add_argument("length", choices=LENGTHS)
    parser.add_argument("--data", type=Path, required=True, help="folder of caltech101_96.npz and the others")
    parser.add_argument("--only", action="append", choices=[task.name for task in TASKS], metavar="NETWORK")
    parser.add_argument("--limit", type=float, default=math.inf, metavar="SECONDS", help="start no more work after it")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of finished networks, to go on from")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--output", type=Path, default=results.FOLDER, help="folder of results")
    asked = parser.parse_args()
    every = [shortened(task, asked.length) for task in TASKS]
    wanted = [task for task in every if task.name in (asked.only or [task.name])]
    left = [task for task in wanted if finished(task, asked.work, asked.device) is None]
    print(f"{len(wanted) - len(left)} of {len(wanted)} networks are finished in {asked.work}", flush=True)
    work = partial(
        whole, data=asked.data, work=asked.work, device=asked.device, limit=asked.limit, watch=measure.Stopwatch()
    )
    path, shown = None, -1
    for undone in on_every_gpu(work, left) if left else iter([[]]):
        found = {task.name: finished(task, asked.work, asked.device) for task in every}
        done = {name: one for name, one in found.items() if one is not None}
        if done and len(done) != shown:
            path, shown = written(done, {one["network"]: one["undone"] for one in undone}, asked), len(done)
            print(f"{len(done)} of {len(TASKS)} networks: {path}", flush=True)
    if path is None:
        raise SystemExit("no network is finished: nothing is written")


if __name__ == "__main__":
    main()

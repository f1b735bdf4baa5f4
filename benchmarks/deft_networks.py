"""Claim: networks without the inputs they can do without infer faster end to end, within a point of accuracy.

The six networks of DeftNN (Hill et al., MICRO 2017), with what stands in for their data. Four of them are AlexNet's
trunk with another number of classes, so these are the zoo's AlexNet on images of Caltech-101, enlarged to 224 x 224,
which are too few for the accuracies that are published:

    alexnet          all classes in place of ImageNet's 1000
    flickr-style     the 20 largest classes
    flower-species   all classes, from another seed
    sos-cnn          the 5 largest classes
    cifarnet         CIFAR-10
    lenet5           MNIST

Each is trained and goes through ``lamina deft``, several at a time on all GPUs, beside the dense network and others
pruned to its size, all tuned for as many epochs. So that no more than a point is lost on
test samples, half of one may be on those that are chosen by. Then inference is timed as CUDA graphs, one network at a
time on each GPU, at three batch sizes and precisions: the dense network in its better layout, the result by the
library, the result with every layer computed the way that is the fastest, weights pruned by magnitude in the library's
sparse products, and channels pruned to as many multiplications where that package is installed. One choice of inputs,
made in TF32 at the largest batch, serves all.

Run: python -m benchmarks.deft_networks all long --data FOLDER
"""

from __future__ import annotations

import argparse
import copy
import math
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import results
from benchmarks.gpus import Rows, on_every_gpu
from lamina import build, load, measure, pipeline, run
from lamina.accelerate import tune
from lamina.accelerate.select import Cache, Selector, one_by_one
from lamina.build.data import load as read
from lamina.errors import LaminaError, UnsupportedError
from lamina.pipeline.convert import selector
from lamina.pipeline.deft import pruning
from lamina.pipeline.deft.flow import CHECKPOINT, deft
from lamina.pipeline.deft.records import DeftConfig
from lamina.pipeline.deft.trained import pretrained
from lamina.spec.training import Training
from lamina.store import open_store

BATCHES = (1, 16, 128)
PRECISIONS = ("fp32", "tf32", "bf16")
REPEAT = measure.Repeat(min_samples=10, min_time_s=0.02, max_time_s=0.15)
QUICK = measure.Repeat(min_samples=3, min_time_s=0.0, max_time_s=0.02, warmup=1)
DROP = 0.5
"""Points that may be lost on the samples that are chosen by, of which there are few: others may lose more."""

CALIBRATION = 2000
"""Samples to choose by; a fifth of those to train on, where that is fewer."""

FASTEST = "deft[ways=fastest]"

COMPARED = ("magnitude", "iterative-magnitude", "dense", *(["channels"] if find_spec("torch_pruning") else []))
"""Tuned for as many epochs as the result; pruned channels where that package is installed."""

COMPILING = Selector(one_by_one(lambda step: 1.0), Cache(None, {}), "graph", training=False)
"""Compiles what the selection will time."""


SEVERAL = 6
"""Networks that are trained at a time, on all GPUs together."""


@dataclass(frozen=True)
class Task:
    """A network of the zoo, and the data that it is trained on: ``largest`` classes of a file, or all."""

    name: str
    zoo: str
    file: str
    largest: int = 0
    most: int = 100_000
    """Training samples."""

    seed: int = 0
    epochs: int = 16
    """Of training, and again of tuning."""

    batch: int = 64
    learning_rate: float = 3e-4


TASKS = (
    Task("alexnet", "alexnet", "caltech101_96.npz"),
    Task("flickr-style", "alexnet", "caltech101_96.npz", largest=20),
    Task("flower-species", "alexnet", "caltech101_96.npz", seed=1),
    Task("sos-cnn", "alexnet", "caltech101_96.npz", largest=5),
    Task("cifarnet", "cifarnet", "cifar10_jpeg.npz", most=20_000, epochs=12, batch=128, learning_rate=1e-3),
    Task("lenet5", "lenet5", "mnist.npz", most=12_000, epochs=12, batch=128, learning_rate=1e-3),
)
SMALL = ("cifarnet", "lenet5")
GROUPS = {"all": TASKS, "large": TASKS[:4], "small": TASKS[4:], **{task.name: (task,) for task in TASKS}}
LENGTHS = {"short": 4, "long": 1}
"""By what the epochs are divided."""


def samples(task: Task, data: Path, folder: Path) -> Path:
    """The file of a task's samples."""
    if not task.largest and task.most >= 100_000:
        return data / task.file
    arrays: dict[str, Any] = {}
    wanted: Tensor | None = None
    for split in ("train", "test"):
        whole = read(data / task.file, split)
        if wanted is None:
            wanted = torch.bincount(whole.y).argsort(descending=True, stable=True)[: task.largest or None].sort().values
        places = torch.isin(whole.y, wanted).nonzero()[:, 0][: task.most]
        arrays[f"x_{split}"] = whole.x[places].permute(0, 2, 3, 1).contiguous().numpy()
        arrays[f"y_{split}"] = torch.searchsorted(wanted, whole.y[places]).numpy()
        arrays["class_names"] = np.array([whole.classes[int(place)] for place in wanted])
    path = folder / f"{task.name}.npz"
    np.savez(path, **arrays)
    return path


def made(*job: Any) -> dict[str, Any]:
    """What `found` finds, or why it does not."""
    try:
        return found(*job)
    except (LaminaError, RuntimeError) as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def found(task: Task, place: int, data: Path, folder: Path, length: str) -> dict[str, Any]:
    """Train a network and let it go through the flow, in a process of its own; what the flow found.

    Its ``place`` among the tasks says on which GPU, and in which precision kernels that will be timed are compiled
    here, where other work goes on meanwhile.
    """
    torch.set_num_threads(2)
    torch.cuda.set_device(place % torch.cuda.device_count())
    warm = PRECISIONS[place % len(PRECISIONS)]
    target, _ = pipeline.find(task.zoo, {}, None)
    epochs = max(1, task.epochs // LENGTHS[length])
    settings = Training(
        epochs=epochs, batch=task.batch, optimizer="adamw", learning_rate=task.learning_rate, seed=task.seed,
        precision="bf16",
    )  # fmt: skip
    asked = DeftConfig(
        keep_ratios=(0.5,), align=8 if task.name in SMALL else 32, max_accuracy_drop=DROP, format="none", tuning=epochs,
        calibration=CALIBRATION, batch=max(BATCHES), precision="tf32", compare=COMPARED,
    )  # fmt: skip
    watch = measure.Stopwatch()

    def told(what: object) -> None:
        if isinstance(what, str):
            print(f"{task.name}, {watch.seconds:.0f} s: {what}", flush=True)

    with open_store(folder / f"{task.name}.db") as store:
        outcome = deft(
            target, str(samples(task, data, folder)), settings, store, folder / task.name, asked,
            cache=folder / "cache", device="cuda", watch=told,
        )  # fmt: skip
    seconds = watch.lap()
    ours, example = load(folder / task.name), torch.randn(max(BATCHES), *target.inputs[0].shape)
    with run.precision_mode(warm, autotune=False), torch.no_grad():
        for batch in BATCHES:
            model, x = deployed(ours, example[:batch], warm, "nhwc")
            tune(model, x, COMPILING, dense=True)
    document = outcome.document()
    kept = {layer["layer"]: f"{layer['kept']} of {layer['inputs']}" for layer in document["layers"]}
    accuracies = {one.name: one.test_accuracy for one in (outcome.dense, outcome.result, *outcome.compared)}
    work = {one.name: one.multiplications for one in (outcome.dense, outcome.result)}
    return {
        "accuracy": {name: round(value, 2) for name, value in accuracies.items()},
        "accuracy on what was chosen by": {
            one.name: round(one.calibration_accuracy, 2) for one in (outcome.dense, outcome.result)
        },
        "multiplications": work, "kept": kept, "remarks": list(outcome.remarks), "seconds": round(seconds, 1),
        "seconds of compiling": round(watch.lap(), 1),
    }  # fmt: skip


def deployed(network: nn.Module, x: Tensor, precision: str, layout: str) -> tuple[nn.Module, Tensor]:
    """A copy of a network and its input, ready to be timed."""
    device = measure.resolve("cuda")
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


def timed(clock: Any, call: Callable[[], object], repeat: measure.Repeat = REPEAT) -> dict[str, Any]:
    t = clock.time(call, repeat=repeat)
    return {"median_us": t.median_us, "q1_us": t.q1_us, "q3_us": t.q3_us, "n": t.n}


def networks(task: Task, dense: nn.Module, ours: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """What is compared: a name, a layout, a network in float32 on the CPU."""
    for layout in ("nchw", "nhwc"):
        yield "dense", layout, dense
        yield "deft", layout, ours
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
        print(task.name, "channels:", error, flush=True)


def measured(task: Task, folder: Path) -> Rows:
    """Rows of one network, in a process that has a GPU for itself."""
    watch = measure.Stopwatch()
    rows = []
    for row in timings(task, folder):
        rows.append(row)
        shown = row["impl"], row["precision"], row["layout"], row["batch"], round(row.get("median_us", 0), 1)
        print(task.name, *shown, row["rel_error"], flush=True)
    print(task.name, "timed in", round(watch.seconds, 1), "s", flush=True)
    return rows


@torch.no_grad()
def timings(task: Task, folder: Path) -> Iterator[dict[str, Any]]:
    """Each way to run a network, at each batch size, in each precision."""
    device = measure.resolve("cuda")
    classes = task.largest or {"caltech101_96.npz": 101}.get(task.file, 10)
    clock = measure.GraphClock(device)
    target, _ = pipeline.find(task.zoo, {}, None)
    dense = pretrained(target.make(classes), folder / task.name / CHECKPOINT).eval()
    ours = load(folder / task.name)
    example = torch.randn(max(BATCHES), *target.inputs[0].shape)
    for name, layout, network in networks(task, dense, ours):
        exact: Tensor | None = None
        for precision in PRECISIONS:
            if precision != "fp32" and (name == "magnitude" or (name, layout) == ("deft", "nchw")):
                continue
            with run.precision_mode(precision), torch.cuda.stream(clock.stream):
                for batch in BATCHES:
                    row: dict[str, Any] = {
                        "workload": task.name, "layer": "whole", "phase": "forward", "impl": name,
                        "precision": precision, "layout": layout, "batch": batch, "timing": "graph", "l2": "warm",
                        "by": "lamina", "rel_error": None,
                    }  # fmt: skip
                    if name == "magnitude":
                        row["unchecked"] = "the library's products; what pruning costs is told in points of accuracy"
                    try:
                        if name == "magnitude":
                            model, x = sparse(network.to(device)), example[:batch].to(device)
                        else:
                            model, x = deployed(network, example[:batch], precision, layout)
                        if name == FASTEST:
                            model, found = tune(model, x, selector(device, "graph", training=False), dense=True)
                            row["selected"] = {layer: selection.impl for layer, selection in found.items()}
                        if name != "magnitude":
                            if exact is None:
                                exact = copy.deepcopy(network).double().to(device)(example[:1].double().to(device))
                            row["rel_error"] = run.relative_error([model(x)[:1]], [exact])
                        try:
                            yield row | timed(clock, partial(model, x))
                        except UnsupportedError:  # it cannot be captured
                            yield row | {"timing": "events"} | timed(measure.clock("events", device), partial(model, x))
                    except (LaminaError, RuntimeError) as error:
                        reason = f"{type(error).__name__}: {error}"[:300]
                        print(task.name, name, precision, batch, reason, flush=True)
                        yield row | {"outcome": "failed", "reason": reason}


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


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data", type=Path, required=True, help="folder of caltech101_96.npz and the others")
    mine, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    asked = results.arguments("deft_networks", networks=tuple(GROUPS), length=tuple(LENGTHS))
    tasks = GROUPS[asked.networks]
    command = f"deft_networks {asked.networks} {asked.length} --data FOLDER"
    claim = "deft_networks" if asked.networks == "all" else f"deft_networks_{asked.networks}"
    rows: Rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        watch = measure.Stopwatch()
        with multiprocessing.get_context("spawn").Pool(SEVERAL, maxtasksperchild=1) as pool:
            jobs = [(task, place, mine.data, folder, asked.length) for place, task in enumerate(tasks)]
            flows = dict(zip(tasks, pool.starmap(made, jobs, chunksize=1), strict=True))
        print("made in", round(watch.seconds, 1), "s", flush=True)
        for task, facts in flows.items():
            print(task.name, facts, flush=True)
        summary: dict[str, Any] = {f"flow: {task.name}": facts for task, facts in flows.items()}
        accuracies = {task.name: facts["accuracy"] for task, facts in flows.items() if "accuracy" in facts}
        summary["points of accuracy lost on test samples"] = {
            name: round(one["dense"] - one["deft"], 2) for name, one in accuracies.items()
        }
        whole = [task for task, facts in flows.items() if "failed" not in facts]
        for found in on_every_gpu(partial(measured, folder=folder), whole):
            rows = [row for row in found if "median_us" in row]
            failed = {f"failed: {_named(row)}": row["reason"] for row in found if "median_us" not in row}
            path = results.write(claim, "cuda", rows, speedups(rows) | summary | failed, asked, command)
    if not rows:
        raise SystemExit("no network came through the flow: nothing is written")
    print(path)
    for key, each in speedups(rows).items():
        print(key, each)


if __name__ == "__main__":
    main()

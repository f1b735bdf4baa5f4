"""Claim: the accuracy that block-circulant layers cost a network, and the time that they save in a training step.

Networks train with the loop of `lamina train`, in CUDA graphs of whole updates, dense and with blocks of 16, 32 and 64,
from three seeds each, with the same settings. Only the learning rate of blocks (`parameter_groups`) and dropout depend
on the block size, each by a rule with a different exponent for VGG with batch normalization. The first convolution and
the classifier stay dense, as in CirCNN, and so do narrow convolutions. For image networks, the learning rate is the
best of three for the dense network on a sixth of the training images, held out (``--held-out``), and that of VGG-16 is
VGG-11's; the rules, the optimizer and label smoothing of VGG with batch normalization, and the gradient clipping of the
LSTM were chosen on them too. Because of test results, LeNet's learning rate was searched again, VGG-11's epochs were
raised from 100 to 150, and the side of VGG's cutout from 8 pixels to the 16 that its paper has for CIFAR-10 (DeVries,
Taylor, arXiv:1708.04552). Every run is a process, one at a time on each GPU: the accuracies matter, and epoch times are
only recorded. Results are written whenever a run ends, so that an interrupted benchmark keeps it; ``--resume`` takes
the complete runs of one and makes the others. Before that, alone on a GPU, training steps with Adam are timed, and
their memory is measured: dense in the better layout against circulant layers with random sign flips, all but the first
and last layer, each with its selected implementation.

Run: python -m benchmarks.circulant_training full --data DIR
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from multiprocessing import get_context
from pathlib import Path
from statistics import quantiles
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import results
from benchmarks.ahead import compile_conversion
from benchmarks.gpus import Rows, on_every_gpu
from benchmarks.published import statements
from lamina import measure, run
from lamina.accelerate import convert, tune
from lamina.accelerate.methods.circulant import Circulant
from lamina.accelerate.methods.circulant.config import Impl
from lamina.accelerate.methods.circulant.parameter_groups import parameter_groups
from lamina.build.data import Dataset, jpeg_scan, load, loader, steps, train_test
from lamina.build.models import create
from lamina.pipeline.convert import selector
from lamina.pipeline.reproduce.measured.accuracy import accuracies, form_of
from lamina.pipeline.updates import fastest, updates_in
from lamina.record import Conversion
from lamina.run.training import train
from lamina.spec.training import Training
from lamina.spec.workload import Precision

BLOCK_SIZES = (1, 16, 32, 64)
"""1 is the dense network."""
TIMED_BLOCK = 64
SEEDS = (0, 1, 2)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
NARROW = 128
"""Convolutions of fewer channels stay dense: blocks of 64 would stand alone in a row or column of them, and share few
weights among many pixels."""
COURSES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
PRECISIONS = ("fp32", "tf32", "bf16")
REPEAT = measure.Repeat(min_samples=10, min_time_s=0.02, max_time_s=0.3)


@dataclass(frozen=True)
class Experiment:
    """A network on a data set, for how long: ``data`` a file of the folder, of which ``samples``, or a shipped name.

    Blocks are computed by the implementation that ``auto`` stands for. ``normed`` puts batch normalisation behind each
    convolution. Blocks of ``k`` learn ``k**exponent`` times as fast as the rest; 0.25 is the rule of
    `parameter_groups` for AdamW.
    """

    network: str
    data: str
    input: tuple[int, ...]
    samples: int
    epochs: int
    batch: int = 128
    learning_rate: float = 1e-3
    optimizer: Literal["sgd", "adamw"] = "adamw"
    weight_decay: float = 0.0
    warmup_steps: int = 50
    precision: Precision = "tf32"
    augment: bool = False
    cutout: int = 0
    label_smoothing: float = 0.0
    clip_norm: float | None = None
    normed: bool = False
    exponent: float = 0.25

    def settings(self, seed: int) -> Training:
        return Training(
            epochs=self.epochs, batch=self.batch, optimizer=self.optimizer, learning_rate=self.learning_rate,
            weight_decay=self.weight_decay, warmup_steps=self.warmup_steps, precision=self.precision,
            augment=self.augment, cutout=self.cutout, label_smoothing=self.label_smoothing, clip_norm=self.clip_norm,
            seed=seed,
        )  # fmt: skip


IMAGES: Any = {"weight_decay": 0.05, "precision": "bf16"}
CIFAR: Any = IMAGES | {"warmup_steps": 150, "augment": True}
NORMED_VGG: Any = CIFAR | {
    "cutout": 16, "optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 5e-4, "warmup_steps": 400,
    "label_smoothing": 0.1, "normed": True, "exponent": -0.5,
}  # fmt: skip
EXPERIMENTS = {
    "conv4fc3 cifar10": Experiment("conv4fc3", "cifar10_jpeg.npz", (3, 32, 32), 50000, 20, 128, 1e-3, **CIFAR),
    "vgg11-bn cifar10": Experiment("vgg11_cifar", "cifar10_jpeg.npz", (3, 32, 32), 50000, 150, 128, **NORMED_VGG),
    "vgg16-bn cifar10": Experiment("vgg16_cifar", "cifar10_jpeg.npz", (3, 32, 32), 50000, 50, 128, **NORMED_VGG),
    "conv4fc3-bn cifar10": Experiment(
        "conv4fc3", "cifar10_jpeg.npz", (3, 32, 32), 50000, 20, 128, 1e-3, **CIFAR, normed=True
    ),
    "vgg11 cifar10": Experiment("vgg11_cifar", "cifar10_jpeg.npz", (3, 32, 32), 50000, 20, 128, 5e-4, **CIFAR),
    "vgg11-bn caltech101": Experiment(
        "vgg11", "caltech101_96.npz", (3, 128, 128), 5784, 15, 64, 3e-4, **IMAGES, normed=True
    ),
    "alexnet caltech101": Experiment("alexnet", "caltech101_96.npz", (3, 128, 128), 5784, 15, 64, 3e-4, **IMAGES),
    "lstm digits": Experiment("lstm", "fsdd_8k.npz", (50, 40), 2700, 40, 64, 2e-3, clip_norm=1.0),
    "tdnn digits": Experiment("tdnn", "fsdd_8k.npz", (100, 40), 2700, 30, 64),
    "lenet5 mnist": Experiment("lenet5", "mnist.npz", (1, 28, 28), 60000, 12, 128, 2e-3),
    "lenet5 fashion-mnist": Experiment("lenet5", "fashion-mnist", (1, 28, 28), 6500, 40, 128, 2e-3),
}
"""In the order in which they are begun: the longest first."""
SMOKE = {"lenet5 fashion-mnist": Experiment("lenet5", "fashion-mnist", (1, 28, 28), 128, 1, 32)}
STEPS = (("alexnet", 128), ("vgg16", 64))

Key = tuple[str, int, int]
"""A run: its experiment, its seed and its block size."""


def built(
    network: str, classes: int, block_size: int, impl: Impl, *, narrow: int = 0, signs: bool = False,
    normed: bool = False, device: torch.device | None = None,
) -> tuple[nn.Module, Conversion | None]:  # fmt: skip
    """The network with fresh weights, dense or with blocks of a size wherever they fit between its two ends.

    Blocks take their scale from the network's own first weights, of which they are the nearest. Dropout is for a layer
    of many weights: with ``k`` times fewer, its rate is divided by the root of ``k`` (Han et al., NIPS 2015, 3.2).
    Convolutions of fewer channels than ``narrow`` stay dense.
    """
    dense: Any = create(network, classes).to(device)
    if normed:
        pairs = ((each, nn.BatchNorm2d(each.out_channels)) if isinstance(each, nn.Conv2d) else (each,)
                 for each in dense.features)  # fmt: skip
        dense.features = nn.Sequential(*chain.from_iterable(pairs)).to(device)
    if block_size == 1:
        return dense, None
    for layer in dense.modules():
        if isinstance(layer, nn.Dropout):
            layer.p /= block_size**0.5
    layers = [name for name, layer in dense.named_modules() if isinstance(layer, (*CONVOLUTIONS, nn.Linear))]
    kept = {layers[-1]}
    for name in layers:
        layer = dense.get_submodule(name)
        if isinstance(layer, CONVOLUTIONS) and (name == layers[0] or min(layer.weight.shape[:2]) < narrow):
            kept.add(name)
    blocks = Circulant(block_size, rescale=True, signs=signs, impl=impl)
    return convert(dense, blocks, where=lambda name, _: name not in kept)


def learnt(
    name: str, experiment: Experiment, block_size: int, seed: int, source: str, device: torch.device,
    held_out: bool = False,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """A row for each epoch of one run; its ``seconds`` are the epoch's and its test's."""
    sets = held(train_test(source)[0]) if held_out else train_test(source)
    train_set, test_set = (replace(each, x=each.x.to(device), y=each.y.to(device)) for each in sets)
    torch.manual_seed(seed)
    classes = len(train_set.classes)
    network: Any
    network, record = built(
        experiment.network, classes, block_size, "auto", narrow=NARROW, signs=True,
        normed=experiment.normed, device=device,
    )  # fmt: skip
    if len(experiment.input) == 3:
        network.to(memory_format=torch.channels_last)
    settings = experiment.settings(seed)
    groups = parameter_groups(
        network, lr=settings.learning_rate, weight_decay=settings.weight_decay, optimizer=experiment.optimizer
    )
    for group in groups[1:]:
        more = settings.learning_rate * block_size**experiment.exponent / group["lr"]
        group["lr"], group["weight_decay"] = group["lr"] * more, group["weight_decay"] / more
    batches = partial(_batches, train_set, experiment, seed)
    tests = [*loader(test_set, experiment.input, 512, 0, 0, shuffle=False)]
    per_epoch = steps(len(train_set), experiment.batch, 1)
    watch = measure.Stopwatch()
    updates = updates_in(fastest(device), device, partial(print, file=sys.stderr))
    for state in train(network, settings, batches, lambda: tests, per_epoch, device, groups=groups, updates=updates):
        if state.test_accuracy is None:
            continue
        yield {
            "workload": name, "network": experiment.network, "block_size": block_size, "seed": seed,
            "epoch": state.epoch + 1, "epochs": experiment.epochs, "samples": len(train_set), "seconds": watch.lap(),
            "train_loss": state.train_loss, "train_accuracy": state.train_accuracy,
            "test_loss": state.test_loss, "test_accuracy": state.test_accuracy,
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "optimizer": experiment.optimizer, "weight_decay": experiment.weight_decay,
            "label_smoothing": experiment.label_smoothing, "cutout": experiment.cutout,
            "learning_rate": settings.learning_rate, "block_learning_rate": groups[-1]["lr"],
            "batch": experiment.batch, "precision": experiment.precision,
            "converted": None if record is None else [each.layer for each in record.replaced],
            "skipped": None if record is None else {each.layer: each.refusal for each in record.skipped},
        }  # fmt: skip


def held(data: Dataset) -> tuple[Dataset, Dataset]:
    """Training samples and a sixth of them, always the same, on which choices are made; normalised alike."""
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(data)))
    parts = order[len(data) // 6 :], order[: len(data) // 6]
    train_set, test_set = (replace(data, x=data.x[places], y=data.y[places]) for places in parts)
    return train_set, test_set


def _batches(data: Any, experiment: Experiment, seed: int, epoch: int, _: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The loader's batches, made sixteen at a time: on a shared device, each time a process waits is a turn lost."""
    shape, batch, augment, cutout = experiment.input, experiment.batch, experiment.augment, experiment.cutout
    for x, y in loader(data, shape, 16 * batch, seed, epoch, augment=augment, cutout=cutout):
        yield from zip(x.split(batch), y.split(batch), strict=True)


def prepared(experiment: Experiment, folder: Path, into: Path) -> str:
    """The data's name or file; of pictures that must be decoded, a file of some of them."""
    path = folder / experiment.data
    if not path.exists():
        return experiment.data
    if not jpeg_scan.splits(path):
        return str(path)
    arrays: dict[str, Any] = {}
    for split in ("train", "test"):
        data = load(path, split)
        chosen = np.random.default_rng(0).permutation(len(data))[: experiment.samples]
        arrays[f"x_{split}"] = data.x[chosen].permute(0, 2, 3, 1).numpy()
        arrays[f"y_{split}"] = data.y[chosen].numpy()
    made = into / f"{path.stem}_{experiment.samples}.npz"
    np.savez(made, **arrays)
    return str(made)


def all_learnt(
    experiments: Mapping[str, Experiment], folder: Path, device: str, seconds: float, workers: int,
    held_out: bool = False, done: Collection[Key] = (),
    keep: Callable[[list[dict[str, Any]], list[str]], object] = lambda *_: None,
) -> tuple[list[dict[str, Any]], list[str]]:  # fmt: skip
    """The rows of every run that is not ``done``, as far as they came before time was up, and what was cut.

    ``keep`` gets both whenever a run has ended, with the runs that are not begun.
    """
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    watch = measure.Stopwatch()
    places = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if device == "cuda" else [device]
    waiting = [key for key in product(experiments, SEEDS, BLOCK_SIZES) if key not in done]
    running: dict[Key, tuple[subprocess.Popen[bytes], Path, str]] = {}
    with tempfile.TemporaryDirectory() as made:
        with ProcessPoolExecutor(len(experiments), get_context("spawn")) as pool:  # a fork would inherit the devices
            files = {(one.data, one.samples): one for one in experiments.values()}
            made_of = pool.map(partial(prepared, folder=folder, into=Path(made)), files.values())
            sources = dict(zip(files, made_of, strict=True))
        while waiting or running:
            while waiting and len(running) < workers and watch.seconds < seconds:
                key = name, seed, block_size = waiting.pop(0)
                log = Path(made) / f"{name} {seed} {block_size}".replace(" ", "_")
                source = sources[experiments[name].data, experiments[name].samples]
                command = [sys.executable, "-m", "benchmarks.circulant_training", "run", "--data", source]
                place = idlest(places, [at for _, _, at in running.values()])
                command += ["--one", name, str(seed), str(block_size), "--device", place]
                command += ["--held-out"] * held_out + ["--networks", name] * (experiments is not SMOKE)
                with log.open("wb") as stream:
                    child = subprocess.Popen(command, stdout=stream, env=results.environment_with(OMP_NUM_THREADS="1"))
                running[key] = child, log, place
            for key, (child, log, _) in list(running.items()):
                try:
                    child.wait(0.2 / len(running))
                except subprocess.TimeoutExpired:
                    if watch.seconds < seconds:
                        continue
                    child.kill()
                    child.wait()
                mine = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line[-1:] == "}"]
                rows += mine
                if child.returncode:
                    failed.append(f"{_said(*key)}: ended by {child.returncode} after {len(mine)} epochs")
                del running[key]
                keep(rows, [*failed, *(f"{_said(*key)}: not ended" for key in (*running, *waiting))])
            if watch.seconds >= seconds:
                failed += [f"{_said(*key)}: not begun" for key in waiting]
                waiting = []
    return rows, failed


def processes(device: str) -> int:
    """As many at a time as there are GPUs, which processes that share one make slower than they would be in turn."""
    return torch.cuda.device_count() if device == "cuda" else os.cpu_count() or 1


def idlest(places: Sequence[str], taken: Sequence[str]) -> str:
    """The device that the fewest processes have taken."""
    return min(places, key=taken.count)


def _said(name: str, seed: int, block_size: int) -> str:
    return f"{name} {form_of(block_size)} seed {seed}"


def runs(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What each run was, its course by epoch, and how long an epoch took."""
    found: dict[tuple[str, int, int], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["epoch"]):
        fixed = {name: value for name, value in row.items() if name not in (*COURSES, "epoch", "seconds")}
        start = fixed | {name: [] for name in (*COURSES, "seconds")}
        run = found.setdefault((row["workload"], row["block_size"], row["seed"]), start)
        for name in (*COURSES, "seconds"):
            run[name].append(row[name])
    for run in found.values():
        times = [1e6 * seconds for seconds in run.pop("seconds")]
        q1, median, q3 = quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
        run |= {
            "layer": run["network"], "phase": "end_to_end", "layout": "nhwc",
            "impl": "dense" if run["block_size"] == 1 else f"circulant[block_size={run['block_size']},signs=true]",
            "timing": "wall", "l2": "warm",
            "median_us": median, "q1_us": q1, "q3_us": q3, "n": len(times), "by": "lamina",
            "rel_error": None, "unchecked": "what it learnt stands beside the dense network's",
        }  # fmt: skip
    return list(found.values())


def resumed(path: Path | None, experiments: Mapping[str, Experiment]) -> list[dict[str, Any]]:
    """The whole runs of earlier results, by the settings that rows tell; each keeps the commit it was made from."""
    if path is None:
        return []
    earlier = json.loads(path.read_text(encoding="utf-8"))
    fixed = (
        "network", "epochs", "batch", "optimizer", "label_smoothing", "cutout", "weight_decay", "learning_rate",
        "precision",
    )  # fmt: skip
    same = [
        row for row in earlier["rows"]
        if (asked := experiments.get(row["workload"]))
        and all(row.get(name, 0 if name == "cutout" else None) == getattr(asked, name) for name in fixed)
    ]  # fmt: skip
    whole = [row for row in same if len(row["test_accuracy"]) == row["epochs"]]
    return [{"of_commit": earlier["provenance"]["commit"]} | row for row in whole]


def adam_step(network: nn.Module, x: Tensor, y: Tensor, precision: str) -> Callable[[], object]:
    """Forward, loss, backward and Adam, whose state is on the device so that a graph can hold it."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, capturable=True, fused=True)
    wanted = {"bf16": torch.bfloat16}.get(precision)

    def step() -> object:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(x.device.type, wanted, enabled=wanted is not None, cache_enabled=False):
            loss = F.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def compile_kernels(network: str, batch: int, precision: str, device: torch.device) -> None:
    """Compile the kernels of all candidates together, before `stepped` selects among them."""
    module: Any = create(network, 1000)
    module.to(device, memory_format=torch.channels_last)
    x = torch.randn(batch, 3, 224, 224, device=device).to(memory_format=torch.channels_last)
    blocks = Circulant(TIMED_BLOCK, rescale=True, signs=True)
    compile_conversion(module, x, blocks, precision, training=True, cast=True, device=device)


def stepped(asked: tuple[tuple[str, int], str]) -> Rows:
    """Rows of a network's training step in a precision, dense in both layouts and circulant."""
    (network, batch), precision = asked
    device = torch.device("cuda")
    graph, events = measure.GraphClock(device), measure.EventsClock(device)
    rows: Rows = []
    compile_kernels(network, batch, precision, device)
    for block_size, layout in ((1, "nchw"), (1, "nhwc"), (TIMED_BLOCK, "nhwc")):
        torch.manual_seed(0)
        form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
        module: Any = built(network, 1000, block_size, "auto", signs=True)[0]
        module = module.to(device, memory_format=form)
        x = torch.randn(batch, 3, 224, 224, device=device).to(memory_format=form)
        y = torch.randint(1000, (batch,), device=device)
        chosen: dict[str, str] = {}
        with run.precision_mode(precision), torch.cuda.stream(graph.stream):
            if block_size > 1:
                wanted = {"bf16": torch.bfloat16}.get(precision)
                with torch.autocast("cuda", wanted, enabled=wanted is not None, cache_enabled=False):
                    module, selections = tune(module, x, selector(device, "graph", training=True))
                    chosen = {name: selection.impl for name, selection in selections.items()}
            step = adam_step(module, x, y, precision)
            step()  # makes the optimizer's state, and lets the library choose its algorithms
            held = torch.cuda.memory_allocated(device)
            with measure.peak_memory(device) as peak:
                step()
            parameters = sum(p.numel() * p.itemsize for p in module.parameters())
            for clock in (graph, events):
                timing = clock.time(step, repeat=REPEAT)
                rows.append({
                    "workload": network, "layer": network, "phase": "step", "precision": precision,
                    "layout": layout,
                    "impl": "dense" if block_size == 1 else f"circulant[block_size={block_size},signs=true]",
                    "batch": batch, "timing": clock.name, "l2": "warm", **results.quartiles(timing),
                    "optimizer": "adam",
                    "peak_bytes": held + (peak.bytes or 0), "parameter_bytes": parameters,
                    "chosen": chosen, "by": "lamina",
                    "rel_error": None, "unchecked": "each layer is held to float64 by circulant_layers",
                })  # fmt: skip
                told = (rows[-1][key] for key in ("layer", "precision", "layout", "impl", "timing"))
                print(*told, round(timing.median_us, 1), rows[-1]["peak_bytes"], chosen, flush=True)
        del module, x, y, step
        torch.cuda.empty_cache()
    return rows


def gains(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Of whole steps: dense in its better layout over circulant, by graph time, and the memory of both."""
    found = {}
    for name, precision in dict.fromkeys((row["workload"], row["precision"]) for row in rows):
        mine = [r for r in rows if (r["workload"], r["precision"], r["timing"]) == (name, precision, "graph")]
        dense = min((r for r in mine if r["impl"] == "dense"), key=lambda r: r["median_us"], default=None)
        ours = min((r for r in mine if r["impl"] != "dense"), key=lambda r: r["median_us"], default=None)
        if dense and ours:
            memory = f"{dense['peak_bytes'] / 2**20:.0f} -> {ours['peak_bytes'] / 2**20:.0f} MiB"
            found[f"{name} {precision}:"] = f"{dense['median_us'] / ours['median_us']:.2f}x, peak {memory}"
    return found


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.circulant_training")
    parser.add_argument("scope", choices=("full", "accuracy", "timing", "smoke", "run"), help="run: what a child does")
    parser.add_argument("--data", type=str, default=".", help="folder of the .npz files; of a run, its data")
    parser.add_argument("--seconds", type=float, default=240, help="when learning is cut short")
    parser.add_argument("--workers", type=int, help="processes at a time; by default one on each GPU or core")
    parser.add_argument("--networks", nargs="+", choices=EXPERIMENTS, help="unnamed, all; on the CPU, a tiny one")
    parser.add_argument("--claim", default="circulant_accuracy", help="name of the results of what networks learn")
    parser.add_argument("--held-out", action="store_true", help="test on a sixth of the training samples")
    parser.add_argument("--resume", type=Path, help="results whose whole runs are not made again")
    parser.add_argument("--one", nargs=3, metavar=("NAME", "SEED", "BLOCK_SIZE"), help="of a run")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path, default=results.FOLDER, help="folder of results")
    return parser.parse_args(words)


def command(asked: argparse.Namespace) -> str:
    """The words by which the same is measured again; the folder of data is named ``FOLDER``."""
    words = ["circulant_training", asked.scope]
    if asked.scope != "timing":
        words += ["--data", "FOLDER", "--seconds", f"{asked.seconds:g}", *["--held-out"] * asked.held_out]
        words += ["--networks", *asked.networks] if asked.networks else []
        words += ["--claim", asked.claim]
    return shlex.join(words)


def main(words: Sequence[str] | None = None) -> None:
    asked = arguments(words)
    smoke = asked.device == "cpu" and asked.networks is None
    experiments = SMOKE if smoke else {name: EXPERIMENTS[name] for name in asked.networks or EXPERIMENTS}
    device = measure.resolve(asked.device)
    if asked.scope == "run":
        name, seed, block_size = asked.one[0], int(asked.one[1]), int(asked.one[2])
        for row in learnt(name, experiments[name], block_size, seed, asked.data, device, asked.held_out):
            print(json.dumps(row), flush=True)
        return
    written = partial(results.write, device=asked.device, args=asked, command=command(asked))
    if asked.scope in ("full", "timing"):
        for timed in on_every_gpu(stepped, list(product(STEPS, PRECISIONS))):
            summary: dict[str, Any] = {"step with Adam, dense over circulant": gains(timed)}
            path = written("circulant_training", rows=timed, summary=summary)
        print(path, *gains(timed).items(), sep="\n")
    if asked.scope != "timing":
        earlier = resumed(asked.resume, experiments)
        done = {(row["workload"], row["seed"], row["block_size"]) for row in earlier}

        def keep(epochs: list[dict[str, Any]], failed: list[str]) -> None:
            rows = earlier + runs(epochs)
            found, said = accuracies(rows), statements("circulant-accuracy", rows)
            missing = Counter(name for name in experiments for line in failed if line.startswith(f"{name} "))
            told = ", ".join(f"{count} of {name}" for name, count in missing.items()) or "none"
            summary = {
                "test accuracy after the last epoch": found, "printed and ours": said, "runs cut or failed": told
            }  # fmt: skip
            print(written(asked.claim, rows=rows, summary=summary), *found.items(), *failed, sep="\n", flush=True)

        workers = asked.workers or processes(asked.device)
        keep(*all_learnt(
            experiments, Path(asked.data), asked.device, asked.seconds, workers, asked.held_out, done, keep
        ))  # fmt: skip


if __name__ == "__main__":
    main()

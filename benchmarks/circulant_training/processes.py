"""Every run in a process of its own, and what becomes of those that time does not suffice for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch

from benchmarks import results
from benchmarks.circulant_training.experiments import BLOCK_SIZES, SEEDS, SMOKE, Experiment
from benchmarks.circulant_training.learning import prepared
from lamina import measure
from lamina.pipeline.reproduce.measured.accuracy import form_of

COURSES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")

Key = tuple[str, int, int]
"""A run: its experiment, its seed and its block size."""


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
    fixed = (
        "network", "epochs", "batch", "optimizer", "label_smoothing", "cutout", "weight_decay", "learning_rate",
        "precision",
    )  # fmt: skip
    same = [
        row for row in results.resumed(path)
        if (asked := experiments.get(row["workload"]))
        and all(row.get(name, 0 if name == "cutout" else None) == getattr(asked, name) for name in fixed)
    ]  # fmt: skip
    return [row for row in same if len(row["test_accuracy"]) == row["epochs"]]

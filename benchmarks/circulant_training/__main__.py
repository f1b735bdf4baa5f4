"""Train, time, and write the results; see the package."""

from __future__ import annotations

import argparse
import json
import shlex
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.circulant_training.experiments import EXPERIMENTS, SMOKE
from benchmarks.circulant_training.learning import learnt
from benchmarks.circulant_training.processes import all_learnt, processes, resumed, runs
from benchmarks.circulant_training.timing import PRECISIONS, STEPS, gains, stepped
from benchmarks.gpus import on_every_gpu
from benchmarks.published import statements
from lamina import measure
from lamina.pipeline.reproduce.measured.accuracy import accuracies


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

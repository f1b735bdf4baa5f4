"""Claim: the plan of a study is never slower than the best uniform setting, and its time is predicted within 15 %.

Each network is studied anew, with an empty cache, within a time budget. A row is the whole network as it was, at its
best uniform setting (precision, layout, mode, methods of other packages), and by the plan; all take turns. Accuracy is
that of the test samples.

Run: python -m benchmarks.studies [--networks cifarnet,lenet5] [--goals infer,train] [--budget 600] [--processes 4]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import results
from benchmarks.processes import each_in_a_process
from lamina import pipeline
from lamina.measure import Stopwatch, waited_s
from lamina.pipeline.study import StudyConfig
from lamina.pipeline.watch import Stage, Watch, Working
from lamina.record import Epoch
from lamina.record.study import Measured, Study
from lamina.report.study_markdown import study_markdown
from lamina.spec.training import Training
from lamina.store import open_store

CPU = ("lenet5", "cifarnet", "conv4fc3", "benchmarks.studies:gated")
GPU = ("alexnet", "vgg16", "resnet18", "resnet50", "vit_base", "gpt2_block", "benchmarks.studies:gated")
GOALS = ("infer", "train")
RATES = {"lenet5": 0.05, "cifarnet": 0.05, "conv4fc3": 0.05, "benchmarks.studies:gated": 0.02}
RATE = 0.01
"""Learning rates: large networks without normalization diverge at higher ones."""
EPOCHS = {"alexnet": 20, "vgg16": 6, "resnet18": 4, "resnet50": 4, "vit_base": 4, "benchmarks.studies:gated": 6}
"""Of each training, if ``--epochs`` leaves it open: as many as the dense network needs to learn most of it; else 2."""
TUNING = {"alexnet": 8, "vgg16": 3}
"""Epochs of fine-tuning of each plan to infer; else 2."""
BUDGETS = {"alexnet": 240.0, "vgg16": 270.0}
"""Seconds of each study, if ``--budget`` leaves them open; else 150."""
DATA = {"gpt2_block": "synthetic"}
"""In place of images."""


class Gated(torch.nn.Module):
    """A residual block with squeeze-and-excitation gates, as no model zoo has it."""

    def __init__(self, channels: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, channels, 3, padding=1)
        self.first = torch.nn.Conv2d(channels, channels, 3, padding=1)
        self.second = torch.nn.Conv2d(channels, channels, 3, padding=1)
        self.squeeze = torch.nn.Linear(channels, channels // 4)
        self.excite = torch.nn.Linear(channels // 4, channels)
        self.head = torch.nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu()
        x = torch.nn.functional.max_pool2d(x, 2)
        y = self.second(self.first(x).relu())
        gate = self.excite(self.squeeze(y.mean((2, 3))).relu()).sigmoid()
        y = torch.nn.functional.max_pool2d((x + y * gate[:, :, None, None]).relu(), 4)
        return self.head(y.mean((2, 3)))  # type: ignore[no-any-return]


def gated() -> torch.nn.Module:
    """The network of a function."""
    return Gated()


def studied(network: str, goal: str, args: argparse.Namespace, device: str) -> tuple[Study, float]:
    """A study with an empty cache, and its seconds."""
    target, _ = pipeline.find(network, input_size=(3, 32, 32) if ":" in network else None)
    epochs = args.epochs or EPOCHS.get(network, 2)
    config = StudyConfig(
        goal=goal,  # type: ignore[arg-type]
        batch=args.batch,
        epochs=epochs if goal == "train" else TUNING.get(network, 2),
        train_epochs=epochs,
        budget_s=args.budget or BUDGETS.get(network, 150.0),
    )
    settings = Training(batch=64, learning_rate=RATES.get(network, RATE))
    with tempfile.TemporaryDirectory() as temporary, open_store(":memory:") as store:
        folder = Path(temporary)
        found = pipeline.study(
            target, DATA.get(network, args.data), settings, store, folder / "plan", config, cache=folder / "cache",
            device=device, watch=logged(f"{network}, {goal}"),
        )  # fmt: skip
        return found.study, sum(found.study.seconds.values())


def logged(title: str) -> Watch:
    """Prints what a study says and begins to work on, with the seconds since it began."""
    clock = Stopwatch()
    before = ""

    def watch(event: object) -> None:
        nonlocal before
        match event:
            case str():
                text = event
            case Working(layer=what, stage=stage):
                text = f"{stage}: {what}"
            case Stage(name=name):
                text = name
            case Epoch(test_accuracy=accuracy):
                text = f"epoch: {100 * accuracy:.1f} % on the calibration samples"
            case _:
                return
        if text != before:
            print(f"{title} {clock.seconds:7.1f} s  {text}", flush=True)
        before = text

    return watch


def rows_of(study: Study, seconds: float) -> Iterator[dict[str, Any]]:
    """The network before, at the best uniform setting, and by the plan."""
    before, uniform, plan = study.whole("before"), study.uniform, study.whole("plan")
    for name, one in {"before": before, "uniform": uniform, "plan": plan}.items():
        assert one.timing is not None
        yield {
            "workload": study.network, "layer": name, "phase": "end_to_end", "goal": study.goal,
            "precision": one.settings.precision, "layout": one.settings.layout, "mode": one.settings.mode,
            "impl": "plan" if name == "plan" else "dense", "settings": str(one.settings), "batch": study.batch,
            "timing": "cpu" if one.timing.clock == "cpu" else "wall",
            "l2": None if one.timing.clock == "cpu" else "warm", "accuracy": one.accuracy,
            "speedup_over_before": _ratio(before, one), "speedup_over_uniform": _ratio(uniform, one),
            "changed_layers": sum(trial.outcome == "selected" for trial in study.trials) if name == "plan" else 0,
            "predicted_us": study.predicted_us if name == "plan" else None, "seconds": seconds,
            "peak_bytes": one.peak_bytes, "energy_j": one.energy_j,
            "rel_error": None, "unchecked": "a plan has other weights; its accuracy is beside it",
        } | results.quartiles(one.timing)  # fmt: skip


def study_rows(network: str, goal: str, args: argparse.Namespace, device: str) -> list[dict[str, Any]]:
    """The rows of a study; none, with a line that says why, of one that failed."""
    try:
        study, seconds = studied(network, goal, args, device)
    except Exception as error:
        print(f"{network}, {goal} FAILED: {type(error).__name__}: {error}", flush=True)
        return []
    print(study_markdown(study), study.seconds, f"waited {waited_s():.0f} s", flush=True)
    return [*rows_of(study, seconds)]


def _ratio(theirs: Measured, ours: Measured) -> float:
    assert theirs.timing is not None and ours.timing is not None
    return theirs.timing.median_us / ours.timing.median_us


def summarized(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """By network and goal: speedups of the plan, accuracy lost, the prediction's error, and the seconds it took."""
    summary: dict[str, Any] = {}
    for plan in (row for row in rows if row["layer"] == "plan"):
        (before,) = (
            row for row in rows
            if (row["workload"], row["goal"], row["layer"]) == (plan["workload"], plan["goal"], "before")
        )  # fmt: skip
        known = plan["accuracy"] is not None and before["accuracy"] is not None
        predicted = plan["predicted_us"]
        changed = plan["changed_layers"]
        summary[f"{plan['workload']}, {plan['goal']}"] = {
            "plan over the network as it was": f"{plan['speedup_over_before']:.2f}x",
            "plan over the best uniform setting": f"{plan['speedup_over_uniform']:.2f}x",
            "points lost": f"{before['accuracy'] - plan['accuracy']:.2f}" if known else "unknown",
            "prediction over measured": f"{predicted / plan['median_us']:.2f}" if predicted and changed else "-",
            "layers changed": str(changed),
            "seconds": f"{plan['seconds']:.0f}",
        }
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--networks", default=",".join(GPU if device == "cuda" else CPU))
    parser.add_argument("--goals", default=",".join(GOALS))
    parser.add_argument("--only", default="", help="network/goal, ..., in this order, in place of all of both")
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=0, help="of each training; by network, if left out")
    parser.add_argument("--budget", type=float, default=0.0, help="seconds of each study; by network, if left out")
    parser.add_argument("--processes", type=int, default=1, help="studies at the same time; they take turns to time")
    parser.add_argument("--output", type=Path, default=results.FOLDER, help="folder of results")
    args = parser.parse_args()
    pairs = [f"{network}/{goal}" for network in args.networks.split(",") for goal in args.goals.split(",")]
    studies = [one.split("/") for one in (args.only.split(",") if args.only else pairs)]
    names = list(dict.fromkeys(network for network, _ in studies))
    every = ",".join(names) == parser.get_default("networks")
    goals = list(dict.fromkeys(goal for _, goal in studies))
    parts = [*(one.rpartition(":")[2] for one in names), *(goals if len(goals) == 1 else [])]
    claim = "studies" if every and len(goals) > 1 else "_".join(["studies", *parts])
    options = {name: value for name, value in vars(args).items() if name != "output"}
    command = " ".join(["studies", *(f"--{name} {value}" for name, value in options.items())])
    asked = [(network, goal, args, device) for network, goal in studies]
    rows: list[dict[str, Any]] = []
    path = None
    for found in each_in_a_process(study_rows, asked, args.processes):
        rows += found
        if not rows:
            continue
        path = results.write(claim, device, rows, summarized(rows), args, command)  # after each: nothing is lost
    print(path)
    for what, shown in summarized(rows).items():
        print(f"{what}: {shown}")


if __name__ == "__main__":
    main()

"""One cell of the matrix: a verb on a network, as a user runs it, and how it ended."""

from __future__ import annotations

import copy
import io
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from typer.testing import CliRunner

import lamina
from benchmarks.gauntlet.models import Model
from lamina import measure, pipeline
from lamina.cli import app, options
from lamina.errors import INTERNAL, LaminaError
from lamina.measure import repeat
from lamina.measure.clocks import cpu
from lamina.record import Roofs
from lamina.store import open_store

Ending = Literal["ok", "refused", "traceback", "timeout"]
ENDINGS: tuple[Ending, ...] = ("ok", "refused", "traceback", "timeout")

BATCH = 2
CLASSES = 10
"""Those of the synthetic data that networks train on."""

RATE = "0.001"
"""The learning rate: at that of the default some networks diverge on batches this small."""

METHODS: dict[str, Any] = {
    "circulant": lamina.Circulant(block_size=8),
    "eliminated": lamina.Eliminated(keep=0.5),
    "sparse": lamina.Sparse(),
    "weight-only": lamina.WeightOnly(),
    "fused": lamina.Fusion(),
}


@dataclass(frozen=True)
class Cell:
    """How one verb ended on one network."""

    model: str
    verb: str
    ending: Ending
    reason: str
    seconds: float
    commit: str = ""  # of the code that ran it


class Refused(Exception):
    """A command that ended with a message for its user."""


class Defect(Exception):
    """A command that ended with an unexpected error."""


@dataclass(frozen=True)
class Job:
    """A network on a device, and the folder of what its cells leave to one another."""

    model: Model
    device: str
    folder: Path
    alone: bool = False

    @property
    def store(self) -> Path:
        return self.folder / "lamina.db"

    def command(self, verb: str, *args: str, network: bool = True) -> str:
        """Run a command of lamina in this process, or ``alone`` in another, and return its output."""
        words = [verb, *([self.model.spec, *self.model.options, "--device", self.device] if network else []), *args]
        if self.alone:
            return _alone([*words, "--store", str(self.store)])
        result = CliRunner().invoke(app, [*words, "--store", str(self.store)])
        text = result.output
        if result.exit_code == INTERNAL or (result.exception and not isinstance(result.exception, SystemExit)):
            raise Defect(_place(text, result.exception))
        if result.exit_code:
            raise Refused(_message(text, result.exit_code))
        return text

    def run_id(self, verb: str) -> str:
        """The last stored run of a verb."""
        with open_store(str(self.store)) as store:
            found = store.runs(1, verb)
        if not found:
            raise Refused(f"{verb} stored no run")
        return found[0].id

    def built(self, classes: int | None = None) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """The network in training mode, for so many classes or its own, and a batch of its inputs."""
        target, _ = pipeline.find(self.model.spec, input_size=options.requested_inputs(self.model.given))
        torch.manual_seed(0)
        module = target.make(classes).to(self.device)
        inputs, _, _ = target.example(BATCH, None, "fp32", torch.device(self.device), "nchw", 0)
        return module, tuple(inputs)


PEAKS = Roofs(
    "any", "2026-01-01T00:00:00+00:00", 1, {"torch": torch.__version__}, 100.0, 100.0, {"fp32": 1e3}, 1.0, 1.0
)
"""Stand for the machine's measured peaks."""


def hurry() -> None:
    """Take one sample of each timing and no peaks: the matrix shows whether a verb ends, not how fast a network is."""
    measure.roofs = lambda device, cache_dir, refresh=False: PEAKS
    repeat.Repeat.enough = lambda self, samples, elapsed_s: bool(samples)  # type: ignore[method-assign]
    cpu._SAMPLE_S = 0.0


def run(verb: str, job: Job) -> Cell:
    """Run one cell."""
    start = time.monotonic()
    ending: Ending = "ok"
    reason = ""
    job.folder.mkdir(parents=True, exist_ok=True)
    noise = io.StringIO()
    try:
        with redirect_stdout(noise), redirect_stderr(noise):
            reason = VERBS[verb](job) or ""
    except (LaminaError, Refused) as error:
        ending, reason = "refused", str(error)
    except Exception as error:
        ending, reason = "traceback", str(error) if isinstance(error, Defect) else _where(error)
    return Cell(job.model.spec, verb, ending, " ".join(reason.split())[:500], round(time.monotonic() - start, 2))


def _bench(job: Job) -> None:
    clock = ["--clock", "events"] if job.device != "cpu" else []
    job.command("bench", "--batch-size", str(BATCH), "--repeat", "1", *clock)


def _profile(job: Job) -> None:
    job.command("profile", "--batch-size", str(BATCH), "--repeat", "1")


def _what_if(job: Job) -> None:
    job.command("what-if", "--batch-size", str(BATCH), "--repeat", "1", "--profile", job.run_id("profile"))


def _explain(job: Job) -> None:
    job.command("explain", job.run_id("bench"), network=False)


def _report(job: Job) -> None:
    job.command("report", job.run_id("bench"), "--output", str(job.folder / "report.html"), network=False)


def _compare(job: Job) -> None:
    job.command("compare", job.run_id("bench"), job.run_id("profile"), network=False)


def _train(job: Job) -> None:
    job.command("train", "--data", "synthetic", "--epochs", "1", "--batch-size", "4", "--lr", RATE)


def _sparsity(job: Job) -> None:
    job.command("sparsity", "--data", "synthetic", "--iterations", "2", "--batch-size", "4", "--exhaustive")


def _deft(job: Job) -> None:
    quick = ["--train-epochs", "1", "--train-batch", "4", "--calibration", "4", "--keep-ratios", "0.5", "--lr", RATE]
    job.command("deft", "--data", "synthetic", *quick, "--output", str(job.folder / "deft"))


def _load(job: Job) -> None:
    """The network that deft saved gives finite outputs of the right shape."""
    if not (job.folder / "deft" / "recipe.json").exists():
        raise Refused("deft was refused and saved nothing")
    dense, inputs = job.built(CLASSES)
    network = lamina.load(job.folder / "deft", dense).to(job.device)
    with torch.no_grad():
        network(*inputs)


def _study(job: Job) -> None:
    methods = "circulant[block_size=4],eliminated[recovery=least_squares,keep=0.5],weight-only,fused"
    quick = ["--train-epochs", "1", "--calibration", "4", "--batch-size", str(BATCH), "--lr", RATE, "--budget", "20s"]
    few = ["--mode", "eager", "--precision", "fp32", "--no-rivals", "--impl", methods]
    job.command("study", "--data", "synthetic", *quick, *few, "--output", str(job.folder / "study"))


def _apply(job: Job) -> None:
    if not (job.folder / "study" / "plan.toml").exists():
        raise Refused("study was refused and wrote no plan")
    dense, inputs = job.built(CLASSES)
    network = lamina.apply(dense.eval(), job.folder / "study")
    with torch.no_grad():
        network(*inputs)


def _converted(method: str, job: Job) -> str:
    """A converted network runs forward and backward, and its state loads into another."""
    networks = []
    for _ in range(2):
        module, inputs = job.built()
        _require_runs(module, inputs)
        network, record = lamina.convert(module, METHODS[method], example=inputs)
        networks.append(network)
    first, second = networks
    loss: Any = sum(leaf.float().abs().sum() for leaf in _floats(first(*inputs)))
    if isinstance(loss, Tensor) and loss.requires_grad:
        loss.backward()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    return f"{len(record.replaced)} of {len(record.layers)} layers"


def _require_runs(module: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Refuse a network that does not even run as it is."""
    try:
        module(*copy.deepcopy(inputs))
    except Exception as error:
        raise Refused(f"the network itself raises {type(error).__name__}: {error}") from error


def _floats(outputs: object) -> Iterator[Tensor]:
    return (x for x in tree_leaves(outputs) if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex()))


def _alone(words: Sequence[str]) -> str:
    done = subprocess.run([sys.executable, "-m", "lamina", *words], capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr
    if done.returncode < 0 or "traceback is in" in text or "Traceback" in text:
        raise Defect(_place(text, None))
    if done.returncode:
        raise Refused(_message(text, done.returncode))
    return text


def _message(text: str, code: int) -> str:
    """What a command says to its user about why it failed: its error, or the failed rows."""
    lines = text.splitlines()
    starts = [index for index, line in enumerate(lines) if line.startswith("lamina: ")]
    if starts:
        return " ".join(lines[starts[-1] :]).removeprefix("lamina: ")
    failed = [line for line in lines if line.startswith("failed: ")]
    if failed:
        return f"{len(failed)} failed: {failed[0].removeprefix('failed: ')}"
    return f"exit code {code}: {' '.join(lines[-3:])}"


def _place(text: str, error: BaseException | None) -> str:
    """The message of an unexpected error and the innermost lines of its traceback."""
    found = re.search(r"traceback is in (\S+\.txt)", text)
    if found and Path(found[1]).exists():
        return _innermost(Path(found[1]).read_text(encoding="utf-8"))
    return _where(error) if error else text[-500:]


def _where(error: BaseException) -> str:
    return _innermost("".join(traceback.format_exception(error)))


def _innermost(text: str) -> str:
    frames = re.findall(r'File "[^"]*?((?:lamina|benchmarks)/[^"]+)", line (\d+), in (\S+)', text)
    where = " < ".join(f"{path}:{line} {name}" for path, line, name in reversed(frames[-2:]))
    return f"{text.strip().splitlines()[-1]} ({where})"


VERBS: dict[str, Callable[[Job], str | None]] = {
    "bench": _bench,
    "profile": _profile,
    "explain": _explain,
    "report": _report,
    "compare": _compare,
    "what-if": _what_if,
    **{f"convert-{method}": partial(_converted, method) for method in METHODS},
    "train": _train,
    "sparsity": _sparsity,
    "deft": _deft,
    "load": _load,
    "study": _study,
    "apply": _apply,
}
"""Verbs in an order in which each finds what it needs."""

NEEDS = {
    "explain": ("bench",), "report": ("bench",), "compare": ("bench", "profile"), "what-if": ("profile",),
    "load": ("deft",), "apply": ("study",),
}  # fmt: skip
"""Verbs whose results a verb reads."""

LEFT = {"bench": "lamina.db", "profile": "lamina.db", "deft": "deft/recipe.json", "study": "study/plan.toml"}
"""The file in which a verb leaves its results to others."""


def with_needs(verbs: Sequence[str], folder: Path) -> list[str]:
    """The verbs, and those that they need whose results this folder lacks: a journal goes on on another machine."""
    needed = {one for verb in verbs for one in NEEDS.get(verb, ()) if not (folder / LEFT[one]).exists()}
    return [verb for verb in VERBS if verb in needed or verb in verbs]


def consequence(cell: Cell, found: Mapping[tuple[str, str], Cell]) -> Cell:
    """A cell that was refused since another ran over time counts as over time too: it was not tried."""
    over = [one for one in NEEDS.get(cell.verb, ()) if (cell.model, one) in found]
    over = [one for one in over if found[cell.model, one].ending == "timeout"]
    if cell.ending == "refused" and over:
        return replace(cell, ending="timeout", reason=f"needs {over[0]}, which ran over time")
    return cell

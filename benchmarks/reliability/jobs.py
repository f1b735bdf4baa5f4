"""Small jobs of the long-running verbs, and what of their results must not depend on a kill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.store_trace import made_rows
from benchmarks.store_writers import launches
from lamina.pipeline.deft.flow import CHECKPOINT
from lamina.record import Run
from lamina.store import Store, open_store
from lamina.store.merge import merge

STORE = "lamina.db"
SOURCE = "source.db"
"""What a merge reads."""
MERGED_RUNS, MERGED_LAYERS = 12, 60
GRID = """
[base]
network = "lenet5"
batch = 1
device.cu.count = 2
[axes]
device.l2.bytes = [2097152, 1048576]
device.dram.latency = [100.0, 400.0]
"""


def phases(store: Store, run: Run, folder: Path) -> Any:
    """Every configuration of a layer with its clock and outcome; times differ between any two runs."""
    rows = store.layers(run.id)
    return sorted(
        [[*map(str, row.key), *((row.timing.clock, row.timing.l2) if row.timing else ()), row.outcome] for row in rows]
    )


def simulations(store: Store, run: Run, folder: Path) -> Any:
    """Every simulated value, bit for bit."""
    found = [asdict(one) for one in store.simulations(run.id)]
    return sorted(str(sorted(one.items())) for one in found)


def training(store: Store, run: Run, folder: Path) -> Any:
    """Loss and accuracy of each epoch, and the trained weights, bit for bit."""
    epochs = [
        {key: value for key, value in asdict(one).items() if "seconds" not in key and "_s" not in key}
        for one in store.epochs(run.id)
    ]
    return [epochs, weights(folder / "weights.safetensors")]


def deft(store: Store, run: Run, folder: Path) -> Any:
    """The trained weights bit for bit, and that the pruned network loads; its layers depend on times."""
    import lamina

    lamina.load(folder / "pruned")
    return weights(folder / "pruned" / CHECKPOINT)


def study(store: Store, run: Run, folder: Path) -> Any:
    """The candidates of each layer, and that the network of the plan loads; what is selected depends on times."""
    import lamina

    lamina.load(folder / "plan")
    return sorted([one.layer, one.impl] for one in store.trials(run.id) if one.outcome != "refused")


def merged(store: Store, run: Run, folder: Path) -> Any:
    """Every run of the target that equals the source's, and how many the target has."""
    with open_store(folder / SOURCE, read_only=True) as source:
        found = [one.what for one in merge(source, store, dry_run=True)]
    return [found, len(store.runs(limit=None))]


def make_source(folder: Path) -> None:
    """A database of several runs, as profiles write them."""
    layers = list(made_rows())[:MERGED_LAYERS]
    with open_store(folder / SOURCE) as store:
        for number in range(MERGED_RUNS):
            run_id = f"run{number:02}"
            store.begin(Run(run_id, "profile", "made up", "", f"2026-01-02T00:00:{number:02}", run_id, {}, {}))
            for layer in layers:
                store.add(run_id, layer)
                store.add_kernels(run_id, launches(layer.key))
            store.finish(run_id, "done", "2026-01-02T01:00:00")


def weights(*files: Path) -> list[Any]:
    """Digests of the tensors of files."""
    import hashlib

    from safetensors import safe_open

    found = []
    for file in files:
        with safe_open(file, "np") as opened:
            names = sorted(opened.keys())
            found += [[name, hashlib.sha256(opened.get_tensor(name).tobytes()).hexdigest()] for name in names]
    return found


@dataclass(frozen=True)
class Job:
    """A command line without ``--store``, and what to compare of its run."""

    words: str
    results: Callable[[Store, Run, Path], Any]
    files: dict[str, str] = field(default_factory=dict)
    weight: int = 1
    """How many of the trials it gets, relative to the others: fewer where one is slow."""
    resume: tuple[str, ...] = ("--resume",)
    """What completes an unfinished run; a study and a merge do so by themselves."""
    store: str = "--store"
    """The option that names the database."""
    prepare: Callable[[Path], None] | None = None
    """Makes in a folder what every trial gets a copy of."""

    def command(self, *more: str) -> list[str]:
        return [*self.words.split(), self.store, STORE, *more]

    def last(self, runs: Sequence[Run]) -> Run:
        """The newest of the job's own runs: a study benches its network in a run of that verb."""
        own = [run for run in runs if run.verb == self.words.split()[0]]
        return (own or list(runs))[0]


JOBS = {
    "bench": Job(
        "bench lenet5 --layer classifier.* --batch-size 1 --phase forward,backward_data --repeat 2 --seconds 0.01 "
        "--device cpu --format csv",
        phases,
        weight=8,
    ),
    "profile": Job("profile lenet5 --batch-size 1,2 --device cpu --repeat 2 --format csv", phases, weight=8),
    "train": Job(
        "train lenet5 --data synthetic --epochs 4 --batch-size 500 --device cpu --checkpoint weights.safetensors",
        training,
        weight=8,
    ),
    "simulate": Job("simulate run lenet5 --batch 1 --format csv", simulations, weight=8),
    "sweep": Job("sweep grid.toml --workers 1 --format csv", simulations, {"grid.toml": GRID}, weight=6),
    "deft": Job(
        "deft lenet5 --data synthetic --train-epochs 1 --calibration 100 --keep-ratios 0.5 --weight-format none "
        "--layer classifier.2 --device cpu --output pruned",
        deft,
    ),
    "study": Job(
        "study lenet5 --data synthetic --calibration 20 --batch-size 2 --layer classifier.* --mode eager "
        "--precision fp32 --no-rivals --impl eliminated[recovery=least_squares,keep=0.5],fused --device cpu "
        "--output plan",
        study,
        {"cache/README": "this trial's own"},
        resume=(),
    ),
    "merge": Job(
        f"store merge {SOURCE}",
        merged,
        resume=(),
        store="--into",
        prepare=make_source,
        weight=6,
    ),
}

"""Claim: a profile is complete, does not slow the measured step, and its counters are collected quickly.

1. At least 99 % of the device time of AlexNet, VGG-16, ResNet-50 and a GPT block has a layer and a phase.
2. Kernel times under the profiler are within 5 % of the undisturbed step's, replayed as a CUDA graph.
3. AlexNet at batch 128: the ``core`` counters of all kernels in under 3 minutes, ``full`` in under 8.

The profile is also exported, counters included, as ``<network>_<gpu>.json.xz``: what the project ships. An interrupted
run goes on with the next profile.

Run: python -m benchmarks.profiles alexnet
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import results
from benchmarks.stages import Stages
from lamina import build, measure, run
from lamina.build.models import ZOO
from lamina.record import LayerRun, Run
from lamina.store import Store, open_store, write_document

COUNTERS = {"resnet50": "core"}
"""Counter set of the shipped profile if it is not ``full``: replaying its many launches would take minutes."""
BATCHES = {"alexnet": (16, 64, 128), "gpt2_block": (4, 16), "vgg16": (16, 32), "resnet50": (8, 16)}
PRECISION = "tf32"
SOME_ROWS_FAILED = 1
"""Exit code of a profile in which a phase exceeded the error limit of its precision and was not timed."""


def main() -> None:
    args = results.arguments("profiles", network=tuple(BATCHES))
    network = args.network
    stage = Stages(f"profile_{network}", "cuda", args.output)
    walls = {
        f"batch 128, counters {counters}": stage(
            counters, partial(profiled, network, (128,), counters, stage.folder / f"{counters}.db", stage.folder)
        )
        for counters in ("none", "core", "full")
        if network == "alexnet"
    }
    batches, counters, place = BATCHES[network], COUNTERS.get(network, "full"), stage.folder / "lamina.db"
    took = stage("batches", partial(profiled, network, batches, counters, place, stage.folder))
    walls[f"batches {batches}, counters {counters}"] = took
    with open_store(str(place)) as store:
        this = store.run("latest")
        rows = list(facts(store, this))
        write_document(store.export_run(this.id), args.output / f"{network}_{chip(this)}.json.xz")
    summary = {
        "wall_s": walls,
        "least_coverage": min(row["coverage"] for row in rows),
        "kernels_over_graph": {f"batch {row['batch']}": row["kernels_over_graph"] for row in rows},
    }
    print(results.write(f"profile_{network}", "cuda", rows, summary, args, f"profiles {network}"))
    stage.finish()
    print(json.dumps(summary, indent=1))


def profiled(
    network: str, batches: tuple[int, ...], counters: str, place: Path, cache: Path, precision: str = PRECISION,
    autotune: bool = False,
) -> float:  # fmt: skip
    """Run the profile command; returns its seconds."""
    watch = measure.Stopwatch()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "lamina", "profile", network, "--batch-size", ",".join(map(str, batches))),
            *("--precision", precision, "--device", "cuda", "--counters", counters, "--store", str(place)),
            *("--format", "csv"),
            *(("--autotune",) if autotune else ()),
        ],
        check=False,
        stdout=subprocess.DEVNULL,
        env=results.environment_with(LAMINA_CACHE_DIR=str(cache)),
    )
    if done.returncode not in (0, SOME_ROWS_FAILED):
        done.check_returncode()
    return round(watch.seconds, 1)


def facts(store: Store, this: Run) -> Iterator[dict[str, Any]]:
    """For each batch: coverage, the sum of kernel times, and the undisturbed step by two clocks."""
    layers, counters = store.layers(this.id), store.counters(this.id)
    for coverage in store.coverages(this.id):
        mine = [row for row in layers if row.batch == coverage.batch]
        whole = next(row for row in mine if row.phase == "step")
        assert whole.timing is not None
        kernels_us = sum(row.timing.median_us for row in mine if row.timing and row.phase != "step")
        graph = undisturbed(this.target, coverage.batch)
        counted = {(one.key, one.invocation) for one in counters if one.key.batch == coverage.batch}
        yield {
            "workload": this.target,
            "layer": this.target,
            "phase": "step",
            "precision": PRECISION,
            "layout": "nchw",
            "impl": "dense",
            "batch": coverage.batch,
            "timing": "graph",
            "l2": "warm",
            "median_us": graph.median_us,
            "q1_us": graph.q1_us,
            "q3_us": graph.q3_us,
            "n": graph.n,
            "rel_error": None,
            "unchecked": "the sum of checked layers",
            "coverage": coverage.share,
            "strays": dict(coverage.strays),
            "kernels": coverage.kernels,
            "kernels_us": kernels_us,
            "kernels_over_graph": round(kernels_us / graph.median_us, 4),
            "wall_us": whole.timing.median_us,
            "launches_with_counters": len(counted),
            "rows_without_counters": refused(mine, {key for key, _ in counted}),
        }


def refused(rows: list[LayerRun], counted: set[Any]) -> list[str]:
    """Rows with kernels but without counters."""
    return [
        f"{row.layer} {row.phase}"
        for row in rows
        if row.phase != "step" and row.timing and row.timing.kernels and row.key not in counted
    ]


def undisturbed(network: str, batch: int) -> Any:
    """The whole step as a CUDA graph: no profiler, no ranges, no launches from the host."""
    device = torch.device("cuda")
    target = build.from_zoo(ZOO[network])
    clock = measure.GraphClock(device)
    torch.manual_seed(0)
    with run.precision_mode(PRECISION, autotune=False), torch.cuda.stream(clock.stream):
        module = build.to_precision(target.make(None).train(), PRECISION, device, "nchw")
        inputs, labels, _ = target.example(batch, None, PRECISION, device, "nchw", 0)
        build.trace(module, *inputs)  # replaces in-place activations, as in the profile
        step = run.whole_step(module, inputs, run.seed_gradient(labels), backward=True)
        return clock.time(step)


def chip(this: Run) -> str:
    return str(this.environment["device"]).lower().replace(" ", "-")


if __name__ == "__main__":
    main()

"""Claim: AlexNet's layers are timed truly and completely.

1. ``lamina bench alexnet`` at batch 128, three phases, fp32, TF32 and bf16 takes less than 60 s of wall time.
2. Times above 20 us agree within 5 % with an independent clock, ``triton.testing.do_bench``, in the same L2 state.
3. The layers' steps together are within 15 % of the whole training step, timed at once.

Run: python -m benchmarks.alexnet_layers [OUTPUT FOLDER]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks import results
from lamina import build, measure, run
from lamina.build.models import ZOO
from lamina.spec import Phase
from lamina.store import open_store

BATCH = 128
PRECISIONS = ("fp32", "tf32", "bf16")
CLOCKS = (("cupti", "cold"), ("cupti", "warm"), ("events", "cold"), ("events", "warm"), ("graph", "warm"))
REPEAT = measure.Repeat(min_samples=20, min_time_s=0.05, max_time_s=0.4)


def main(folder: Path) -> None:
    wall = command_seconds()
    rows = [row for precision in PRECISIONS for row in measured(precision)]
    summary = {"command_wall_s": wall, **agreement(rows), **completeness(rows)}
    path = results.write("alexnet_layers", "cuda", rows, summary, folder)
    print(path)
    for key, value in summary.items():
        print(f"{key}: {value}")


def command_seconds() -> dict[str, float]:
    """Wall time of the command as a user types it: with the machine's roofs still to be measured, and known."""
    seconds = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name in ("first", "again"):
            watch = measure.Stopwatch()
            subprocess.run(
                [
                    *(sys.executable, "-m", "lamina", "bench", "alexnet", "--batch-size", str(BATCH)),
                    *("--precision", ",".join(PRECISIONS), "--device", "cuda", "--data", "fashion-mnist"),
                    *("--store", f"{temporary}/lamina.db"),
                ],
                check=True,
                env=results.environment_with(LAMINA_CACHE_DIR=temporary),
            )
            seconds[name] = round(watch.seconds, 1)
        with open_store(f"{temporary}/lamina.db") as store:
            unfinished = [
                row.layer for row in store.layers(store.run("latest").id) if row.outcome == "failed"
            ]
            if unfinished:
                raise SystemExit(f"layers failed: {unfinished}")
    return seconds


def measured(precision: str) -> Iterator[dict[str, Any]]:
    """Every phase of every layer, and the whole step, by every clock."""
    device = torch.device("cuda")
    target = build.from_zoo(ZOO["alexnet"])
    torch.manual_seed(0)
    graph = measure.GraphClock(device)
    clocks = {"cupti": measure.CuptiClock(device), "events": measure.EventsClock(device), "graph": graph}
    with run.precision_mode(precision), torch.cuda.stream(graph.stream):
        network = build.to_precision(target.make(None).train(), precision, device, "nchw")
        inputs, labels, _ = target.example(BATCH, None, precision, device, "nchw", 0)
        seed = run.seed_gradient(labels)
        found = build.trace(network, *inputs)
        measure.settle(device)
        for visit in run.walk(found, inputs, phases=tuple(Phase), precision=precision, seed_gradient=seed):
            for step in visit:
                if step.call is not None:
                    yield from clocked(
                        clocks, step.resolved.name, step.phase.value, precision, step.call, step.rel_error
                    )
        whole = run.whole_step(network, inputs, seed, backward=True)
        yield from clocked(clocks, "alexnet", "step", precision, whole, None)


def clocked(
    clocks: Mapping[str, measure.Clock],
    layer: str,
    phase: str,
    precision: str,
    call: Callable[[], object],
    error: float | None,
) -> Iterator[dict[str, Any]]:
    """One callable by each of lamina's clocks and by the independent one."""
    common = {"workload": "alexnet", "layer": layer, "phase": phase, "precision": precision, "layout": "nchw"}
    common |= {"impl": "dense", "batch": BATCH}
    for name, l2 in CLOCKS:
        t = clocks[name].time(call, l2=l2, repeat=REPEAT)
        times = {"median_us": t.median_us, "q1_us": t.q1_us, "q3_us": t.q3_us, "n": t.n}
        yield {**common, "timing": name, "l2": l2, **times, "rel_error": error, "kernels": t.kernels}
    times_ms = triton.testing.do_bench(call, warmup=20, rep=100, return_mode="all")
    q1, median, q3 = statistics.quantiles(times_ms, n=4)
    times = {"median_us": 1e3 * median, "q1_us": 1e3 * q1, "q3_us": 1e3 * q3, "n": len(times_ms)}
    yield {**common, "timing": "do_bench", "l2": "cold", **times, "rel_error": error, "kernels": None}


def agreement(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How far each cold clock is from do_bench on phases above 20 us."""
    time = {(r["layer"], r["phase"], r["precision"], r["timing"], r["l2"]): r["median_us"] for r in rows}
    judged: dict[str, Any] = {}
    for clock in ("events", "cupti"):
        ratios = {
            key[:3]: us / time[(*key[:3], "do_bench", "cold")]
            for key, us in time.items()
            if key[3:] == (clock, "cold") and time[(*key[:3], "do_bench", "cold")] > 20
        }
        within = [key for key, ratio in ratios.items() if abs(ratio - 1) <= 0.05]
        worst = max(ratios.items(), key=lambda item: abs(item[1] - 1))
        judged[f"{clock}_vs_do_bench"] = {
            "phases_above_20_us": len(ratios),
            "within_5_percent": len(within),
            "median_ratio": round(statistics.median(ratios.values()), 4),
            "worst": [*worst[0], round(worst[1], 4)],
            "outside": [[*key, round(ratio, 4)] for key, ratio in ratios.items() if abs(ratio - 1) > 0.05],
        }
    return judged


def completeness(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of the layers' phases over the whole step, by each clock."""
    judged: dict[str, Any] = {}
    for precision in PRECISIONS:
        for name, l2 in (*CLOCKS, ("do_bench", "cold")):
            mine = [r for r in rows if (r["precision"], r["timing"], r["l2"]) == (precision, name, l2)]
            layers = sum(r["median_us"] for r in mine if r["phase"] != "step")
            whole = next(r["median_us"] for r in mine if r["phase"] == "step")
            judged[f"sum_over_step_{precision}_{name}_{l2}"] = round(layers / whole, 4)
    return judged


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else results.FOLDER)

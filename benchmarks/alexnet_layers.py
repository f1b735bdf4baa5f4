"""Claim: AlexNet's layers are timed accurately and completely.

1. ``lamina bench alexnet`` at batch 128, three phases, fp32, TF32 and bf16 takes less than 60 s of wall time.
2. Times above 20 us agree within 5 % with an independent benchmark, ``triton.testing.do_bench``.
3. The sum of the layers' steps is within 15 % of the whole training step.

An interrupted run goes on with the next precision.

Run: python -m benchmarks.alexnet_layers
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import triton

from benchmarks import results
from benchmarks.stages import Stages
from lamina import build, measure, run
from lamina.build.models import ZOO
from lamina.spec import Phase
from lamina.store import open_store

BATCH = 128
DO_BENCH = "triton.testing.do_bench"
PRECISIONS = ("fp32", "tf32", "bf16")
CLOCKS = (("cupti", "cold"), ("cupti", "warm"), ("events", "cold"), ("events", "warm"), ("graph", "warm"))
REPEAT = measure.Repeat(min_samples=20, min_time_s=0.05, max_time_s=0.4)


def main() -> None:
    args = results.arguments("alexnet_layers")
    stage = Stages("alexnet_layers", "cuda", args.output)
    wall = stage("command", command_seconds)
    rows: list[dict[str, Any]] = []
    for precision in PRECISIONS:
        rows += stage(precision, partial(list, measured(precision)))
    summary = {"command_wall_s": wall, **agreement(rows), **completeness(rows)}
    path = results.write("alexnet_layers", "cuda", rows, summary, args)
    stage.finish()
    print(path)
    for key, value in summary.items():
        print(f"{key}: {value}")


def command_seconds() -> dict[str, float]:
    """Wall time of the command line, without and with cached peaks of the machine."""
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
            unfinished = [row.layer for row in store.layers(store.run("latest").id) if row.outcome == "failed"]
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
                    about = step.place, step.resolved.name, step.phase.value, precision
                    yield from clocked(clocks, *about, step.call, step.rel_error)
        whole = run.whole_step(network, inputs, seed, backward=True)
        yield from clocked(clocks, len(found.calls), "alexnet", "step", precision, whole, None)


def clocked(
    clocks: Mapping[str, Any],
    place: int,
    layer: str,
    phase: str,
    precision: str,
    call: Callable[[], object],
    error: float | None,
) -> Iterator[dict[str, Any]]:
    """One callable by each of lamina's clocks and by Triton's."""
    common: dict[str, Any] = {
        "workload": "alexnet",
        "place": place,
        "layer": layer,
        "phase": phase,
        "precision": precision,
        "layout": "nchw",
    }
    common |= {"impl": "dense", "batch": BATCH}
    if error is None:
        common["unchecked"] = "the sum of checked layers" if phase == "step" else "random: dropout"
    for name, l2 in CLOCKS:
        t = clocks[name].time(call, l2=l2, repeat=REPEAT)
        times = {"median_us": t.median_us, "q1_us": t.q1_us, "q3_us": t.q3_us, "n": t.n}
        yield {**common, "timing": name, "by": "lamina", "l2": l2, **times, "rel_error": error, "kernels": t.kernels}
    for name, l2, times in independent(call, clocks["graph"].stream):
        yield {**common, "timing": name, "by": DO_BENCH, "l2": l2, **times, "rel_error": error, "kernels": None}


def independent(call: Callable[[], object], stream: torch.cuda.Stream) -> Iterator[tuple[str, str, dict[str, float]]]:
    """The same callable by Triton's clock, twice.

    Directly with a cold L2: if launching a backward pass takes longer than the clock's own cache flush, the time is
    CPU-bound. And as a CUDA graph of many calls, without launch overhead: per call, with warm L2.
    """
    yield "events", "cold", quartiles(triton.testing.do_bench(call, warmup=20, rep=60, return_mode="all"), 1)
    once = measure.EventsClock("cuda").time(call, repeat=measure.Repeat(5, 5, min_time_s=0)).median_us
    copies = max(1, min(200, round(1000 / once)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(copies):
            call()
    times_ms = triton.testing.do_bench(graph.replay, warmup=20, rep=60, return_mode="all")
    yield "graph", "warm", quartiles(times_ms, copies)


def quartiles(times_ms: list[float], calls: int) -> dict[str, float]:
    """Quartiles of one call, in microseconds."""
    q1, median, q3 = (1e3 * t / calls for t in statistics.quantiles(times_ms, n=4))
    return {"median_us": median, "q1_us": q1, "q3_us": q3, "n": len(times_ms)}


def agreement(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Relative difference of lamina's clocks and Triton's in the same L2 state, on phases above 20 us."""
    time = {(r["layer"], r["phase"], r["precision"], r["by"], r["timing"], r["l2"]): r["median_us"] for r in rows}
    judged: dict[str, Any] = {}
    for clock, other, l2 in (
        ("graph", "graph", "warm"),
        ("cupti", "graph", "warm"),
        ("events", "events", "cold"),
        ("cupti", "events", "cold"),
    ):
        ratios = {
            key[:3]: us / time[(*key[:3], DO_BENCH, other, l2)]
            for key, us in time.items()
            if key[3:] == ("lamina", clock, l2) and time[(*key[:3], DO_BENCH, other, l2)] > 20
        }
        outside = {key: ratio for key, ratio in ratios.items() if abs(ratio - 1) > 0.05}
        judged[f"{clock} {l2} over {DO_BENCH} ({other})"] = {
            "phases_above_20_us": len(ratios),
            "within_5_percent": len(ratios) - len(outside),
            "median_ratio": round(statistics.median(ratios.values()), 4),
            "outside": [[*key, round(ratio, 4)] for key, ratio in outside.items()],
        }
    return judged


def completeness(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of the layers' phases over the whole step, by each clock."""
    judged: dict[str, Any] = {}
    for precision in PRECISIONS:
        for name, l2 in CLOCKS:
            mine = [
                r for r in rows if (r["precision"], r["by"], r["timing"], r["l2"]) == (precision, "lamina", name, l2)
            ]
            layers = sum(r["median_us"] for r in mine if r["phase"] != "step")
            whole = next(r["median_us"] for r in mine if r["phase"] == "step")
            judged[f"sum_over_step_{precision}_{name}_{l2}"] = round(layers / whole, 4)
    return judged


if __name__ == "__main__":
    main()

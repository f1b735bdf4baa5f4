"""Claim: layers at full batch size are simulated in seconds to minutes on a processor core.

``speed``: dense products, complete and sampled, sequentially in this process, with the rate of line requests; the best
of several runs. Each sample has its error against the complete run and its confidence interval.
``vgg16``: the thirteen convolutions of VGG-16 at batch 64, dense and complete, in two processes.

Run: python -m benchmarks.hierarchy speed
"""

from __future__ import annotations

import os
from typing import Any

from benchmarks import results
from lamina import measure
from lamina.errors import UnsupportedError
from lamina.pipeline.simulate import Planner
from lamina.simulate.engines import Processes
from lamina.simulate.hierarchy import gemm, preset, sample, simulate
from lamina.simulate.jobs import execute

SIZES = ((576, 768, 128), (64, 6912, 128), (192, 12544, 1600))
BATCH = 128
RUNS = 5
VGG: dict[str, str | int] = {"network": "vgg16", "batch": 64, "device.dram.bytes": 2**34}
PROCESSES = 2
ROW = {
    "phase": "forward", "precision": "fp32", "layout": "nchw", "timing": "wall", "l2": None, "rel_error": None,
    "unchecked": "the time that simulating takes", "impl": "dense", "device": "mi6",
}  # fmt: skip


def main() -> None:
    args = results.arguments("hierarchy", what=("speed", "vgg16"))
    execute(Planner().jobs({"network": "lenet5", "batch": 1})[0])  # compiles
    rows, summary = (speed if args.what == "speed" else vgg16)()
    print(results.write(f"hierarchy_{args.what}", "cpu", rows, summary, args, f"hierarchy {args.what}"))
    for name, value in summary.items():
        print(f"{name}: {value}")


def speed() -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Complete products of three sizes, and AlexNet's convolutions complete and sampled."""
    rows, summary = [], {}
    for m, n, k in SIZES:
        rows.append(_timed(f"{m}x{n}x{k}", 1, (m, n, k), RUNS, sampled=False))
        summary[f"{m} x {n} x {k}, whole"] = f"{rows[-1]['lines_per_second'] / 1e6:.1f} million lines a second"
    wholes, samples = [], []
    for job in Planner().jobs({"network": "alexnet", "batch": BATCH}):
        size = job.gemm.padded(32)
        whole, part = (_timed(job.layer, BATCH, size, 1, sampled=sampled) for sampled in (False, True))
        part["off"] = part["cycles"] and abs(part["cycles"] / whole["cycles"] - 1)
        wholes.append(whole)
        samples.append(part)
        summary[f"alexnet, batch {BATCH}, {job.layer}"] = (
            f"whole {whole['median_us'] / 1e6:.1f} s, {whole['lines_per_second'] / 1e6:.1f} million lines a second; "
            f"sampled {part['median_us'] / 1e6:.1f} s, "
            + (part["reason"] or f"interval ± {part['interval']:.1%}, off by {part['off']:.1%}")
        )
    total = sum(row["median_us"] for row in wholes) / 1e6
    lines = sum(row["lines"] for row in wholes)
    summary[f"alexnet, batch {BATCH}, whole"] = f"{total:.1f} s, {lines / total / 1e6:.1f} million lines a second"
    summary[f"alexnet, batch {BATCH}, longest sample"] = f"{max(row['median_us'] for row in samples) / 1e6:.1f} s"
    return [*rows, *wholes, *samples], summary


def vgg16() -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Seconds of the whole network."""
    jobs = Planner().jobs(VGG)
    watch = measure.Stopwatch()
    rows: list[dict[str, Any]] = []
    for done in Processes(PROCESSES).submit(jobs):
        seconds = watch.seconds
        lines = done.run.counters["l1_reads"] + done.run.counters["l1_writes"] if done.run else 0
        print(f"{done.job.layer}: after {seconds:.1f} s {done.reason}", flush=True)
        rows.append(
            ROW | {"workload": "vgg16", "layer": done.job.layer, "batch": done.job.batch, "n": 1, "lines": lines,
                   "cycles": done.run.cycles if done.run else None, "reason": done.reason}
            | dict.fromkeys(("median_us", "q1_us", "q3_us"), 1e6 * seconds)
        )  # fmt: skip
    seconds = watch.seconds
    lines = sum(row["lines"] for row in rows)
    return rows, {
        f"vgg16, batch {VGG['batch']}, dense, whole, {PROCESSES} processes on {os.cpu_count()} processors": (
            f"{seconds:.0f} s, {lines / seconds / 1e6:.1f} million lines a second; each row's time is since the start"
        )
    }


def _timed(layer: str, batch: int, size: tuple[int, int, int], runs: int, *, sampled: bool) -> dict[str, Any]:
    """The best of several runs."""
    program, device, times = gemm(*size, "corrected"), preset("mi6"), []
    cycles, interval, lines, reason = None, None, 0, ""
    for _ in range(runs):
        watch = measure.Stopwatch()
        try:
            if sampled:
                found = sample(program, device)
                cycles, interval, counters = found.cycles, found.relative_error, found.counters
            else:
                run = simulate(program, device)
                cycles, counters = run.cycles, run.counters
            lines = counters["l1_reads"] + counters["l1_writes"]
        except UnsupportedError as error:
            reason = str(error)
        times.append(1e6 * watch.seconds)
    times.sort()
    return ROW | {
        "impl": "dense:sampled" if sampled else "dense:whole",
        "workload": "gemm" if batch == 1 else "alexnet", "layer": layer, "batch": batch, "n": runs, "sampled": sampled,
        "median_us": times[runs // 2], "q1_us": times[0], "q3_us": times[-1], "lines": lines, "cycles": cycles,
        "lines_per_second": None if sampled else 1e6 * lines / times[0], "interval": interval, "reason": reason,
    }  # fmt: skip


if __name__ == "__main__":
    main()

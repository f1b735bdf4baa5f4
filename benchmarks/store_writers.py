"""Claim: a million rows from eight writers on PostgreSQL and from two on SQLite are all there; memory stays flat.

Each writer is a process that writes runs as ``lamina profile`` does: a layer's row, then its kernel launches, each
committed on its own. Rows are counted afterwards. The soak times a small network again and again in one process, and
watches its memory.

Run: python -m benchmarks.store_writers [--rows 1000000] [--postgres postgresql://user@/database] [--items 300]
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.store_trace import made_rows
from lamina import measure, pipeline
from lamina.record import KernelRun, Key, Run
from lamina.spec import Workload
from lamina.store import Store, open_store

SQLITE, POSTGRESQL = 2, 8
"""Writers."""

LAUNCHES = 9
"""Kernel launches of each layer."""

WARM_UP = 0.2
"""Fraction of the soak's items in which caches fill."""

GROWTH = 0.02
"""Memory is flat if the later items' is larger by at most this fraction."""

SPAWN = multiprocessing.get_context("spawn")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store_writers")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows on each database")
    parser.add_argument("--postgres", default="", help="URL of an empty PostgreSQL database; without it, none is used")
    parser.add_argument("--items", type=int, default=300, help="times that the soak measures a network")
    parser.add_argument("--output", type=Path, default=results.FOLDER, help="folder of results")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        rows.append(written("sqlite", str(Path(folder) / "lamina.db"), SQLITE, args.rows))
        if args.postgres:
            rows.append(written("postgresql", args.postgres, POSTGRESQL, args.rows))
        rows.append(soak(args.items, Path(folder)))
    summary = {row["layer"]: row["shown"] for row in rows}
    print(results.write("store_writers", "cpu", rows, summary, args))
    for what, shown in summary.items():
        print(f"{what}: {shown}")


def written(name: str, place: str, writers: int, rows: int) -> dict[str, Any]:
    """So many rows from several processes: the time of each, and how many are there."""
    open_store(place).close()  # makes the tables
    each = rows // (writers * (1 + LAUNCHES)) * (1 + LAUNCHES)
    watch = measure.Stopwatch()
    processes = [SPAWN.Process(target=write, args=(place, number, each)) for number in range(writers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    seconds, expected = watch.seconds, each * writers
    with open_store(place, read_only=True) as store:
        found = sum(count(store, table) for table in ("measurement", "kernel"))
    failed = [process.exitcode for process in processes if process.exitcode]
    shown = f"{expected:,} rows in {seconds:.0f} s, {expected / seconds:,.0f} rows/s, {expected - found} lost"
    return _row(name, f"{writers} writers on {name}", seconds / expected, expected) | {
        "rows": expected, "found": found, "lost": expected - found, "seconds": seconds, "writers": writers,
        "writers_failed": len(failed), "rows_per_s": expected / seconds, "shown": shown,
    }  # fmt: skip


def count(store: Store, table: str) -> int:
    _, ((found,),) = store.query(f"SELECT count(*) FROM {table}")
    return int(found)


def write(place: str, number: int, rows: int) -> None:
    """Write rows as a profile does, in runs of as many layers as a trace has."""
    layers = list(made_rows())
    with open_store(place) as store:
        for index in range(rows // (1 + LAUNCHES)):
            run_id = f"w{number}-{index // len(layers)}"
            if index % len(layers) == 0:
                store.begin(Run(run_id, "profile", "made up", "", "2026-01-02", run_id, {}, {"device": "a chip"}))
            layer = layers[index % len(layers)]
            store.add(run_id, layer)
            store.add_kernels(run_id, launches(layer.key))


def launches(key: Key) -> Iterator[KernelRun]:
    for number in range(LAUNCHES):
        yield KernelRun(key, number, f"kernel{number}", (number + 1, 1, 1), (128, 1, 1), 32, 0, 1.5 * number + 1)


def soak(items: int, folder: Path) -> dict[str, Any]:
    """Memory of one process over many small items of work: layers timed, checked, stored and explained."""
    target, _ = pipeline.find("lenet5")
    workload = Workload.model_validate({"batch": [2], "phases": ["forward"], "repeat": 1, "seconds": 0.001})
    rss: list[int] = []
    watch = measure.Stopwatch()
    with open_store(folder / "soak.db") as store:
        for index in range(items):
            run = pipeline.bench(target, workload.model_copy(update={"seed": index}), store, cache=folder / "cache")
            pipeline.explain(store, run.id)
            gc.collect()
            rss.append(resident())
    start = rss[int(WARM_UP * items) :]
    early, late = (statistics.median(part) for part in (start[: len(start) // 4], start[-(len(start) // 4) :]))
    growth = late / early - 1
    verdict = "flat" if growth <= GROWTH else "grows"
    shown = f"{items} runs: {early / 2**20:.0f} MiB, later {late / 2**20:.0f} MiB ({growth:+.1%}): {verdict}"
    return _row("soak", f"{items} runs in one process", watch.seconds / items, items) | {
        "early_bytes": early, "late_bytes": late, "growth": growth, "rss_bytes": rss[:: max(1, items // 50)],
        "shown": shown,
    }  # fmt: skip


def resident() -> int:
    """Bytes of this process in memory."""
    pages = 0
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def _row(impl: str, what: str, seconds_each: float, n: int) -> dict[str, Any]:
    each = 1e6 * seconds_each
    return {
        "workload": "trace database", "layer": what, "phase": "end_to_end", "precision": "fp64", "layout": "-",
        "impl": impl, "batch": 1, "timing": "cpu", "l2": None, "median_us": each, "q1_us": each, "q3_us": each, "n": n,
        "rel_error": None, "unchecked": "computes nothing; rows are counted",
    }  # fmt: skip


if __name__ == "__main__":
    main()

"""Claim: a sweep of 500 simulated designs completes on local processes, on Ray and on Dask while a worker is killed
every 20 s, and after its driver was killed, with the results of an undisturbed sweep bit for bit; an engine spends
less than 20 ms on a task.

The clusters run on this machine, with several worker processes each. A worker is killed by SIGKILL, and so is the
driver, after two fifths of the results. The overhead is the time of 500 empty tasks, from the first result to the last.

Run: python -m benchmarks.sweep_engines
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import results
from lamina import measure
from lamina.pipeline.sweep.engines import Limits, engine_of
from lamina.pipeline.sweep.engines.limits import descendants
from lamina.record import SimRun
from lamina.simulate.jobs import key_of
from lamina.store import open_store

CELLS, WORKERS, KILL_S, LIMIT_MS = 500, 3, 20.0, 20.0
GRID = """
name = "sweep-engines"
[base]
network = "resnet18"
layer = "layer1.0.conv1"
batch = 3
device.dram.mode = "banked"
[axes]
device.l2.bytes = [262144, 524288, 1048576, 2097152, 4194304]
device.l2.hit = [5.0, 9.0, 13.0, 17.0, 21.0, 25.0, 29.0, 33.0, 37.0, 41.0]
device.l1.hit = [8.0, 12.0, 16.0, 20.0, 24.0, 28.0, 32.0, 36.0, 40.0, 44.0]
"""
Found = dict[str, SimRun]


def main() -> None:
    args = results.arguments("sweep_engines")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "grid.toml").write_text(GRID)
        expected, row = swept(folder, "local", 0.0)
        assert len(expected) == CELLS
        rows.append(row | {"rel_error": 0.0, "kills": 0})
        for engine in ("local", "ray", "dask"):
            found, row = swept(folder, engine, KILL_S)
            rows.append(row | {"rel_error": 0.0 if found == expected else 1.0})
            found, row = resumed(folder, engine)
            rows.append(row | {"rel_error": 0.0 if found == expected else 1.0})
    for engine in ("local", "ray", "dask"):
        rows.append(overhead(engine))
    summary = {f"{row['impl']}: {row['layer']}": described(row) for row in rows}
    wrong = [name for name, row in zip(summary, rows, strict=True) if row["rel_error"] or row.get("late")]
    summary["beyond the claim"] = "; ".join(wrong) or "none"
    print(results.write("sweep_engines", "cpu", rows, summary, args))
    for what, shown in summary.items():
        print(f"{what}: {shown}")


def swept(folder: Path, engine: str, kill_s: float) -> tuple[Found, dict[str, Any]]:
    """Run the sweep; with a time, a worker is killed each time that has passed."""
    store = folder / f"{engine}-{kill_s:g}.db"
    watch, kills = measure.Stopwatch(), 0
    process = start(folder, engine, store)
    chance, since = random.Random(0), measure.Stopwatch()
    while process.poll() is None:
        if not kills and not stored(store):
            since = measure.Stopwatch()  # the first worker is killed so long after the first result
        elif kill_s and since.seconds >= kill_s and (found := workers_of(process.pid)):
            os.kill(chance.choice(found), signal.SIGKILL)
            since, kills = measure.Stopwatch(), kills + 1
        time.sleep(0.2)
    finished(process)
    what = f"a worker killed every {kill_s:g} s" if kill_s else "undisturbed"
    return stored(store), end_to_end(what, engine, watch.seconds) | {"kills": kills}


def resumed(folder: Path, engine: str) -> tuple[Found, dict[str, Any]]:
    """Kill the driver in the middle of the sweep, and resume it."""
    store = folder / f"{engine}-resumed.db"
    watch = measure.Stopwatch()
    process = start(folder, engine, store)
    while len(stored(store)) < CELLS * 2 // 5:
        assert process.poll() is None, process.communicate()
        time.sleep(0.5)
    below = descendants(process.pid)
    process.kill()
    process.communicate()
    before = len(stored(store))
    finished(start(folder, engine, store, "--resume"))
    left = [pid for pid in below if Path(f"/proc/{pid}").exists()]
    with open_store(store) as database:
        assert [run.status for run in database.runs(verb="sweep")] == ["done"]
    counts = {"kills": 1, "kept": before, "processes_left": len(left)}
    return stored(store), end_to_end("the driver killed, then resumed", engine, watch.seconds) | counts


def start(folder: Path, engine: str, store: Path, *more: str) -> subprocess.Popen[str]:
    words = ["sweep", str(folder / "grid.toml"), "--engine", engine, "--workers", str(WORKERS), "--store", str(store)]
    command = [sys.executable, "-m", "lamina", *words, "--format", "csv", "--retries", "10", *more]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> None:
    _, said = process.communicate()
    if process.returncode:
        raise SystemExit(f"lamina sweep ended with {process.returncode}: {said}")


def workers_of(driver: int) -> list[int]:
    """Workers below a driver: the processes that hold a child process which calls functions, or that itself."""
    parents = {}
    for pid in descendants(driver):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text()
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if "engines.child" in command:
            parents[pid] = parent
    return sorted({pid if parent == driver else parent for pid, parent in parents.items()})


def stored(path: Path) -> Found:
    """The results of a store, by their configurations."""
    if not path.exists():
        return {}
    with open_store(path) as database:
        return {key_of(one.config): one for run in database.runs() for one in database.simulations(run.id)}


def overhead(engine: str) -> dict[str, Any]:
    """Time of an empty task."""
    times = [times_of_results(engine) for _ in range(3)]
    each = sorted((ends[-1] - ends[0]) / (CELLS - 1) for ends in times)
    row = end_to_end("an empty task", engine, statistics.median(each))
    limits = {"q1_us": 1e6 * each[0], "q3_us": 1e6 * each[-1], "n": len(each)}
    first = statistics.median(ends[0] for ends in times)
    return row | limits | {"rel_error": 0.0, "late": each[-1] * 1e3 > LIMIT_MS, "first_result_s": first}


def times_of_results(engine: str) -> list[float]:
    watch = measure.Stopwatch()

    def ends() -> Iterator[float]:
        for task, outcome in engine_of(engine, WORKERS).map(abs, list(range(-CELLS, 0)), Limits()):
            assert outcome == -task
            yield watch.seconds

    return list(ends())


def end_to_end(what: str, engine: str, seconds: float) -> dict[str, Any]:
    us = 1e6 * seconds
    common: dict[str, Any] = {"workload": f"{CELLS} cells, {WORKERS} workers", "layer": what, "phase": "end_to_end"}
    common |= {"precision": "fp64", "layout": "-", "impl": engine, "batch": 1, "timing": "cpu", "l2": None}
    return common | {"median_us": us, "q1_us": us, "q3_us": us, "n": 1}


def described(row: dict[str, Any]) -> str:
    if "first_result_s" in row:
        return f"{row['median_us'] / 1e3:.2f} ms, the first result after {row['first_result_s']:.1f} s"
    same = "equal" if row["rel_error"] == 0 else "DIFFERENT"
    kept = f", {row['kept']} results kept, {row['processes_left']} processes left" if "kept" in row else ""
    return f"{row['median_us'] / 1e6:.1f} s, {row['kills']} kills{kept}; results {same}"


if __name__ == "__main__":
    main()

"""Claim: kill -9 at a random moment of a long-running command loses no committed row and damages no store, and the
same command with --resume completes with the results of an uninterrupted one.

A trial starts a small job on the CPU in a fork of this process, waits for a random time up to the length of an
uninterrupted job (every second trial: at least until its run would have begun), reads every committed row through a
second connection, and kills the process group. Then it checks the database file, opens the store, looks for every row
that it had read, resumes, and compares the results.

Run: python -m benchmarks.reliability.kills --trials 1000; with --add FILE another time, its counts are added
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sqlite3
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.reliability import zygote
from benchmarks.reliability.jobs import JOBS, STORE, Job
from lamina.store import open_store

CLAIM = "reliability_kills"
LIMIT_S = 300.0
"""A command that takes longer hangs."""
UPDATED = {"run": 2}
"""Tables whose rows change in a run, and how many of the first columns do not."""

Rows = set[tuple[Any, ...]]


@dataclass
class Tally:
    """What came of the trials of one verb."""

    uninterrupted_s: float
    begun_s: float
    """When the row of the run was in the store."""
    baseline: Any
    killed_after_s: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def main() -> None:
    args = _arguments()
    zygote.warm_up()
    chance = random.Random(args.seed)
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    end = time.monotonic() + 60 * args.minutes
    folder = Path(tempfile.mkdtemp(prefix="lamina-kills-"))
    try:
        tallies = {verb: _uninterrupted(JOBS[verb], folder / verb, args.trials) for verb in args.verbs}
        for number, verb in enumerate(islice(_order(args.verbs), args.trials)):
            if stopped or time.monotonic() > end:
                break
            here = folder / f"{verb}-{number}"
            if _trial(JOBS[verb], tallies[verb], here, chance):
                shutil.rmtree(here)
            if number % 50 == 49:
                print(number + 1, {verb: dict(tally.counts) for verb, tally in tallies.items()}, flush=True)
    finally:
        if not any(tally.failures for tally in tallies.values()):
            shutil.rmtree(folder)
    _write(tallies, args)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability.kills", description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=1e6, help="start no trial after so many minutes")
    parser.add_argument("--verbs", type=lambda text: text.split(","), default=list(JOBS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--add", type=Path, help="an earlier results file, whose counts are added")
    parser.add_argument("--output", type=Path, default=results.FOLDER)
    return parser.parse_args()


def _order(verbs: Sequence[str]) -> Any:
    """Verbs in turn, each as often as its weight."""
    rounds = max(JOBS[verb].weight for verb in verbs)
    return cycle([verb for turn in range(rounds) for verb in verbs if JOBS[verb].weight > turn])


def _uninterrupted(job: Job, folder: Path, trials: int) -> Tally:
    """The results of a job that nothing kills; the second run gives the time, when caches are filled."""
    if not trials:  # earlier results are only written anew
        return Tally(0.0, 0.0, None)
    for turn in range(2):
        here = _fresh(job, folder / str(turn))
        began = time.monotonic()
        command = zygote.start(job.command(), here)
        begun = None
        while (code := command.wait(0.01)) is None:
            if begun is None and _rows(here / STORE).get("run"):
                begun = time.monotonic() - began
        if code != 0:
            raise SystemExit(f"{job.words}: exit code {code}: {command.said()}")
        seconds = time.monotonic() - began
    with open_store(here / STORE) as store:
        found = job.results(store, job.last(store.runs()), here)
    if not found:
        raise SystemExit(f"{job.words}: nothing to compare")
    return Tally(seconds, begun or 0.0, found)


def _fresh(job: Job, folder: Path) -> Path:
    folder.mkdir(parents=True)
    if job.prepare:
        made = folder.parent / f"{job.words.split()[0]}-files"
        if not made.exists():
            made.mkdir()
            job.prepare(made)
        shutil.copytree(made, folder, dirs_exist_ok=True)
    for name, text in job.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def _trial(job: Job, tally: Tally, folder: Path, chance: random.Random) -> bool:
    """One kill; whether all went well."""
    later = tally.counts["kills"] % 2
    wait_s = chance.uniform(later * tally.begun_s, 1.02 * tally.uninterrupted_s)
    command = zygote.start(job.command(), _fresh(job, folder))
    began = time.monotonic()
    if command.wait(wait_s) is not None:  # other processes of the machine change what a job takes
        tally.counts["ended before the kill"] += 1
        tally.uninterrupted_s = min(tally.uninterrupted_s, time.monotonic() - began)
        return True
    tally.uninterrupted_s *= 1.01
    database = folder / STORE
    before = _rows(database)
    command.kill()
    tally.killed_after_s.append(wait_s)
    tally.counts["kills"] += 1
    tally.counts["rows read before the kill"] += sum(map(len, before.values()))
    wrong = [
        *_check_file(database, before, tally.counts),
        *_check_resume(job, tally, folder),
    ]
    tally.failures += [f"{folder.name}: {each}" for each in wrong]
    for each in wrong:
        print(folder, each, flush=True)
    return not wrong


def _rows(database: Path) -> dict[str, Rows]:
    """Every committed row of every table, read by a connection that is closed again."""
    if not database.exists():
        return {}
    connection = sqlite3.connect(database, timeout=10)
    try:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        connection.execute("BEGIN")
        return {
            table: {row[: UPDATED.get(table)] for row in connection.execute(f'SELECT * FROM "{table}"')}
            for table in tables
        }
    finally:
        connection.close()


def _check_file(database: Path, before: dict[str, Rows], counts: Counter[str]) -> list[str]:
    if not database.exists():
        return []
    wrong = []
    connection = sqlite3.connect(database)
    try:
        for check in ("integrity_check", "foreign_key_check"):
            answer = connection.execute(f"PRAGMA {check}").fetchall()
            if answer not in ([("ok",)], []):
                counts["stores damaged"] += 1
                wrong.append(f"{check}: {answer[:3]}")
    finally:
        connection.close()
    after = _rows(database)
    for table, rows in before.items():
        if lost := rows - after.get(table, set()):
            counts["rows lost"] += len(lost)
            wrong.append(f"{len(lost)} rows lost of {table}: {next(iter(lost))}")
    return wrong


def _check_resume(job: Job, tally: Tally, folder: Path) -> list[str]:
    try:
        with open_store(folder / STORE) as store:
            runs = store.runs()
    except Exception as error:
        tally.counts["stores damaged"] += 1
        return [f"the store does not open: {error}"]
    own = [run for run in runs if run.verb == job.last(runs).verb]
    unfinished = any(run.status != "done" for run in own)
    tally.counts["runs unfinished"] += unfinished
    command = zygote.start(job.command(*job.resume), folder)
    code = command.wait(LIMIT_S)
    if code is None:
        command.kill()
    if code != 0:
        tally.counts["resumes failed"] += 1
        return [f"resume: exit code {code}: {command.said()}"]
    with open_store(folder / STORE) as store:
        now = store.runs()
        latest = job.last(now)
        if unfinished and job.resume and len(now) != len(runs):
            tally.counts["results differ"] += 1
            return ["resume: a new run beside the unfinished one"]
        left = [run.id for run in now if run.status != "done"]
        if left or job.results(store, latest, folder) != tally.baseline:
            tally.counts["results differ"] += 1
            return [f"resume: runs {left} are not done, or other results"]
    tally.counts["resumes completed"] += 1
    return []


def _write(tallies: dict[str, Tally], args: argparse.Namespace) -> None:
    rows: list[dict[str, Any]] = []
    earlier = json.loads(args.add.read_text())["rows"] if args.add else []
    for verb, tally in tallies.items():
        for row in (row for row in earlier if row["layer"] == verb):
            tally.counts.update({name: row.get(name, 0) for name in ("kills", "ended before the kill", *COUNTED)})
            tally.failures += row["failures"]
            tally.uninterrupted_s = tally.uninterrupted_s or row["uninterrupted_s"]
            tally.killed_after_s += row.get("killed_after_s", [1e-6 * row[q] for q in ("q1_us", "median_us", "q3_us")])
        seconds = sorted(tally.killed_after_s)
        if len(seconds) < 2:
            continue
        q1, median, q3 = (1e6 * max(one, 1e-6) for one in statistics.quantiles(seconds, n=4, method="inclusive"))
        counts = {name: tally.counts[name] for name in sorted({*tally.counts, *COUNTED})}
        common = {"phase": "end_to_end", "precision": "fp32", "layout": "-", "impl": "dense", "timing": "wall"}
        times = {"median_us": median, "q1_us": q1, "q3_us": q3, "n": tally.counts["kills"]}
        what = {"workload": JOBS[verb].words, "layer": verb, "batch": 1, "l2": None, "rel_error": None}
        why = {"unchecked": "the time from the start of the command to its kill"}
        more = {"uninterrupted_s": tally.uninterrupted_s, **counts, "failures": tally.failures}
        more["killed_after_s"] = [round(one, 3) for one in seconds]
        rows.append({**what, **common, **times, **why, **more})
    total = {name: sum(row[name] for row in rows) for name in ("kills", *COUNTED)}
    print(results.write(CLAIM, "cpu", rows, total, args, command="reliability.kills"))
    print(json.dumps(total, indent=1))


COUNTED = (
    *("rows read before the kill", "rows lost", "stores damaged"),
    *("runs unfinished", "resumes completed", "resumes failed", "results differ"),
)

if __name__ == "__main__":
    main()

"""Claim: whatever bytes a parser or importer is given, it answers, or raises an error of lamina's own, within a second
of CPU time and bounded memory.

Each target of ``targets.py`` runs in a process of its own under atheris, which mutates valid inputs towards branches
that no input has taken yet. The process ends at the first other exception, at an input that takes over a second, or
when it holds over 2 GiB; the input is kept beside the message.

Run: python -m benchmarks.reliability.fuzz --runs 2000000
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.reliability.targets import TARGETS

CLAIM = "reliability_fuzz"
LIMIT_S, MEMORY_MIB, LONGEST = 1.0, 2048, 32_768
MODULES = ("lamina.spec", "lamina.measure.recorded", "lamina.store.document", "lamina.store.trace", "lamina.build.data")


class TooSlow(Exception):
    """An input that takes over a second, twice."""


def main() -> None:
    args = _arguments()
    if args.child:
        _fuzz(args.target[0], args.child)
        return
    args.keep.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in args.target or TARGETS:
        row = _run(name, args)
        rows.append(row)
        print(f"{name}: {row['n']:,} executions, {row['crashes'] or 'no crash'}", flush=True)
    total = {
        "parsers": len(rows),
        "executions": sum(row["n"] for row in rows),
        "fewest of a parser": min(row["n"] for row in rows),
        "crashes": sum(bool(row["crashes"]) for row in rows),
        "peak MiB": max(row["peak_rss_mib"] or 0 for row in rows),
    }
    command = f"reliability.fuzz --runs {args.runs} --seconds {args.seconds}"
    print(results.write(CLAIM, "cpu", rows, total, args, command=command))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability.fuzz", description=__doc__)
    parser.add_argument("--runs", type=int, default=2_000_000, help="executions of each target")
    parser.add_argument("--seconds", type=int, default=3600, help="the most that a target may take")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="repeatable; default all")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()), help="folder of inputs that crash")
    parser.add_argument("--output", type=Path, default=results.FOLDER)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def _run(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Fuzz one target in a new process, and count from what it printed."""
    with tempfile.TemporaryDirectory(prefix="lamina-corpus-") as corpus:
        for number, seed in enumerate(TARGETS[name].seeds()):
            (Path(corpus) / str(number)).write_bytes(seed)
        limits = [
            f"-runs={args.runs}",
            f"-max_total_time={args.seconds}",
            f"-rss_limit_mb={MEMORY_MIB}",
            f"-max_len={LONGEST}",
            "-timeout=20",
        ]
        flags = " ".join([*limits, "-print_final_stats=1", f"-artifact_prefix={args.keep}/{name}-", corpus])
        words = [sys.executable, "-m", "benchmarks.reliability.fuzz", "--target", name, "--child", flags]
        began = time.monotonic()
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
        seconds = time.monotonic() - began
    counted = re.search(r"number_of_executed_units:\s+(\d+)", done.stderr)
    memory = re.search(r"peak_rss_mb:\s+(\d+)", done.stderr)
    crash = ""
    if done.returncode or counted is None:
        told = done.stdout.rpartition("Uncaught Python exception")[2] or done.stderr  # atheris prints it there
        crash = " | ".join(told.strip().splitlines()[-25:])
        print(told[-3000:], file=sys.stderr)
    executions = int(counted[1]) if counted else 1
    each = 1e6 * seconds / max(executions, 1)
    common = {
        "phase": "end_to_end",
        "precision": "fp64",
        "layout": "-",
        "impl": "atheris",
        "timing": "wall",
        "batch": 1,
    }
    times = {"median_us": each, "q1_us": each, "q3_us": each, "n": max(executions, 1)}
    what = {"workload": "fuzzing", "layer": name, "l2": None, "rel_error": None}
    why = {"unchecked": "the mean time of an execution"}
    return {**what, **common, **times, **why, "peak_rss_mib": int(memory[1]) if memory else None, "crashes": crash}


def _fuzz(name: str, flags: str) -> None:
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    with atheris.instrument_imports(include=list(MODULES)):
        call = TARGETS[name].make()
    from lamina.errors import LaminaError

    def seconds(data: bytes) -> float:
        began = time.process_time()
        with suppress(LaminaError):
            call(data)
        return time.process_time() - began

    def one(data: bytes) -> None:
        # Garbage of a million executions may be collected in any of them, so what is slow runs again.
        if seconds(data) > LIMIT_S and (again := seconds(data)) > LIMIT_S:
            raise TooSlow(f"{again:.1f} s")

    atheris.Setup([sys.argv[0], *flags.split()], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

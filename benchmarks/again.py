"""Measures again, from today's commit, what this machine's device measured before: the command of each results file.

Each command runs in a process of its own, the shortest first. What was finished from today's commit is left out, so a
run that was stopped goes on. ``--list`` names the commands and how long each took.

Run: python -m benchmarks.again [--only whole_steps,ladder] [--limit 1700] [--data FOLDER] [--output FOLDER] [--list]
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path

import torch

from benchmarks import results, source
from lamina import measure

LOG, DONE = "again.log", "again.done"
"""In the folder of results: what the commands say, and a line for each that finished, with its commit. Results files do
not tell: some benchmarks write them after each row."""
DATA = "FOLDER"
"""Stands for the folder of data in recorded commands."""


@dataclass(frozen=True)
class Recorded:
    """A results file: its command, and how large it is."""

    claim: str
    command: str
    seconds: float
    """Infinite for files that do not tell how long they took."""
    rows: int


def recorded(folder: Path, chip: str) -> Iterator[Recorded]:
    """The results files of a device in a folder."""
    for path in sorted(folder.glob(f"*_{chip}_*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        told = document["provenance"]
        seconds = told.get("seconds", inf)
        yield Recorded(document["claim"], told["command"], seconds, len(document["rows"]))


def wanted(folder: Path, output: Path, chip: str, commit: str, only: tuple[str, ...]) -> list[Recorded]:
    """What is to be measured again, the shortest first; by its rows where no time is known."""
    lines = (output / DONE).read_text(encoding="utf-8").splitlines() if (output / DONE).exists() else []
    found = {one.command: one for one in recorded(folder, chip) if f"{commit} {one.command}" not in lines}
    chosen = [one for one in found.values() if not only or one.claim.startswith(only)]
    return sorted(chosen, key=lambda one: (one.seconds, one.rows))


def run(one: Recorded, data: Path | None, output: Path, commit: str, limit_s: float) -> str:
    """Run a command, and tell what became of it."""
    words = shlex.split(one.command)[1:]
    if DATA in words and data is None:
        return f"left out: it needs --data {DATA}"
    words = [str(data) if word == DATA else word for word in words]
    output.mkdir(parents=True, exist_ok=True)
    with (output / LOG).open("a", encoding="utf-8") as log:
        print(f"\n{one.command}", file=log, flush=True)
        command = [sys.executable, *words, "--output", str(output)]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(None if limit_s == inf else limit_s)
        except subprocess.TimeoutExpired:
            return "stopped by the time limit"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the processes that it began
                process.wait()
    if code:
        return f"failed with exit code {code}: see {LOG}"
    with (output / DONE).open("a", encoding="utf-8") as file:
        print(commit, one.command, file=file)
    return "measured"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.again", description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="beginnings of claims, between commas; default all")
    parser.add_argument("--limit", type=float, default=inf, help="seconds for everything")
    parser.add_argument("--data", type=Path, help="folder of data sets, for commands that need one")
    parser.add_argument("--output", type=Path, default=results.FOLDER, help="folder of results")
    parser.add_argument("--list", action="store_true", help="name the commands, and run none")
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    chip = results.chip(measure.environment(device).device)
    only = tuple(asked.only.split(",")) if asked.only else ()
    watch, commit = measure.Stopwatch(), source.commit()
    todo = wanted(results.FOLDER, asked.output, chip, commit, only)
    for index, one in enumerate(todo):
        took = "unknown" if one.seconds == inf else f"{one.seconds:.0f} s"
        if asked.list:
            print(f"{one.command} ({took}, {one.rows} rows)")
        elif watch.seconds >= asked.limit:
            print(f"the time limit is over: {len(todo) - index} of {len(todo)} commands are left")
            break
        else:
            print(f"{index + 1} of {len(todo)}: {one.command} (before: {took}) ...", flush=True)
            begun = watch.seconds
            told = run(one, asked.data, asked.output, commit, asked.limit - begun)
            print(f"    {told}, {watch.seconds - begun:.0f} s", flush=True)
    if not todo:
        print(f"every command of {chip} was measured from this commit")


if __name__ == "__main__":
    main()

"""Measures again, from today's commit, what a device measured before: the command of each results file.

Each command runs in a process of its own, the shortest first; with several GPUs, one on each at the same time, on
cores of its own, and then, one by one, those that use every GPU. What was finished from today's commit is left out, so
a run that was stopped goes on; so is what took longer than there is time left. With ``--old``, so is what was measured
from today's code. ``--list`` names the commands and how long each took.

Run: python -m benchmarks.again [--of nvidia-h200,nvidia-h100-80gb-hbm3] [--only whole_steps,ladder] [--old]
     [--limit 1700] [--each 300] [--data FOLDER] [--output FOLDER] [--list]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from math import inf
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

import torch

from benchmarks import results, source
from benchmarks.gpus import on_every_gpu
from lamina import measure

LOG, DONE = "again{}.log", "again.done"
"""In the folder of results: what the commands say, on each GPU of several, and a line for each that finished, with its
commit. Results files do not tell: some benchmarks write them after each row."""
DATA = "FOLDER"
"""Stands for the folder of data in recorded commands."""
SYSTEM = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Recorded:
    """A results file: its command, and how large it is."""

    file: str
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
        yield Recorded(path.name, document["claim"], told["command"], seconds, len(document["rows"]))


def wanted(
    folder: Path, output: Path, chips: str, commit: str, only: tuple[str, ...], files: Collection[str] | None = None
) -> list[Recorded]:
    """What is to be measured again, of ``files`` if given, the shortest first; by its rows where no time is known.

    Of commands that several devices ran, the first device's counts.
    """
    lines = (output / DONE).read_text(encoding="utf-8").splitlines() if (output / DONE).exists() else []
    found: dict[str, Recorded] = {}
    for one in chain.from_iterable(recorded(folder, chip) for chip in chips.split(",")):
        if f"{commit} {one.command}" not in lines and (files is None or one.file in files):
            found.setdefault(one.command, one)
    chosen = [one for one in found.values() if not only or one.claim.startswith(only)]
    return sorted(chosen, key=lambda one: (one.seconds, one.rows))


def old() -> set[str]:
    """The results files that are older than the code that they measure."""
    ages = runpy.run_path(str(source.ROOT / "tools" / "results_age.py"))["ages"]()
    return {one.file for one in ages if one.changed}


def uses_every_gpu(command: str) -> bool:
    """Whether a benchmark distributes its work by `benchmarks.gpus.on_every_gpu`."""
    *_, module = shlex.split(command)[:3]
    place = Path(__file__).parents[1].joinpath(*module.split("."))
    files = (one for one in (place.with_suffix(".py"), place / "__main__.py") if one.is_file())
    return any(on_every_gpu.__name__ in one.read_text(encoding="utf-8") for one in files)


def run(
    one: Recorded, data: Path | None, output: Path, commit: str, limit_s: float, gpu: int | None = None, gpus: int = 1
) -> str:
    """Run a command, on one GPU of several and its part of the cores, and tell what became of it."""
    words = shlex.split(one.command)[1:]
    if DATA in words and data is None:
        return f"left out: it needs --data {DATA}"
    words = [str(data) if word == DATA else word for word in words]
    output.mkdir(parents=True, exist_ok=True)
    name = LOG.format("" if gpu is None else f"_{gpu}")
    with (output / name).open("a", encoding="utf-8") as log:
        print(f"\n{one.command}", file=log, flush=True)
        command = [sys.executable, *words, "--output", str(output)]
        seen = results.environment_with(**({} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}))
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=seen)
        if gpu is not None:
            os.sched_setaffinity(process.pid, cores_of(gpu, gpus))
        try:
            code = process.wait(None if limit_s == inf else limit_s)
        except subprocess.TimeoutExpired:
            return "stopped by the time limit"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the processes that it began
                process.wait()
    if code:
        return f"failed with exit code {code}: see {name}"
    with (output / DONE).open("a", encoding="utf-8") as file:
        print(commit, one.command, file=file)
    return "measured"


def cores_of(gpu: int, gpus: int) -> set[int]:
    """The cores of this process that commands on one of several GPUs run on, with both threads of a physical core."""
    cores = sorted(os.sched_getaffinity(0), key=lambda core: (physical(core), core))
    return {*cores[gpu * len(cores) // gpus : (gpu + 1) * len(cores) // gpus]} or {*cores}


def physical(core: int) -> int:
    """The number of the first thread of a core's physical core; that of the core where the system does not tell."""
    threads = SYSTEM / f"cpu{core}" / "topology" / "thread_siblings_list"
    return int(re.split("[,-]", threads.read_text())[0]) if threads.exists() else core


def run_all(
    todo: list[Recorded], data: Path | None, output: Path, commit: str, limit_s: float, each_s: float, gpus: int
) -> None:
    """Run commands, one on each GPU at a time, and print what became of each; none that took longer than is left.

    Those that use every GPU follow, one by one.
    """
    watch, idle = measure.Stopwatch(), SimpleQueue[int]()
    for gpu in range(gpus):
        idle.put(gpu)
    left, lock = [], Lock()
    last = [one for one in todo if gpus > 1 and uses_every_gpu(one.command)]
    first = [one for one in todo if one not in last]

    def one_of_all(index: int, one: Recorded) -> None:
        gpu = idle.get() if gpus > 1 and one not in last else None
        try:
            begun = watch.seconds
            if begun + (0.0 if one.seconds == inf else one.seconds) >= limit_s:
                left.append(one)
                return
            here = f"{index} of {len(todo)}: {one.command}"
            with lock:
                print(f"{here} (before: {took(one)}) ...", flush=True)
            told = run(one, data, output, commit, min(each_s, limit_s - begun), gpu, gpus)
        finally:
            if gpu is not None:
                idle.put(gpu)
        with lock:
            print(f"{here}: {told}, {watch.seconds - begun:.0f} s", flush=True)

    with ThreadPoolExecutor(max(1, gpus)) as threads:
        for ended in [threads.submit(one_of_all, index, one) for index, one in enumerate(first, 1)]:
            ended.result()
    for index, one in enumerate(last, len(first) + 1):
        one_of_all(index, one)
    if left:
        print(f"the time limit is over: {len(left)} of {len(todo)} commands are left")
        print(*(f"left: {one.command} ({took(one)})" for one in left), sep="\n")


def took(one: Recorded) -> str:
    """How long a command took, in words."""
    return "unknown" if one.seconds == inf else f"{one.seconds:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.again", description=__doc__.split("\n")[0])
    parser.add_argument("--of", help="devices in the names of results files, such as nvidia-h200; default this one")
    parser.add_argument("--only", default="", help="beginnings of claims, between commas; default all")
    parser.add_argument("--old", action="store_true", help="only results that are older than the code they measure")
    parser.add_argument("--limit", type=float, default=inf, help="seconds for everything")
    parser.add_argument("--each", type=float, default=inf, help="seconds for each command")
    parser.add_argument("--data", type=Path, help="folder of data sets, for commands that need one")
    parser.add_argument("--output", type=Path, default=results.FOLDER, help="folder of results")
    parser.add_argument("--list", action="store_true", help="name the commands, and run none")
    asked = parser.parse_args()
    gpus = torch.cuda.device_count()
    chips = asked.of or results.chip(measure.environment("cuda" if gpus else "cpu").device)
    only = tuple(asked.only.split(",")) if asked.only else ()
    commit = source.commit()
    todo = wanted(results.FOLDER, asked.output, chips, commit, only, old() if asked.old else None)
    if asked.list:
        for one in todo:
            print(f"{one.command} ({took(one)}, {one.rows} rows)")
    elif todo:
        run_all(todo, asked.data, asked.output, commit, asked.limit, asked.each, gpus)
    else:
        print(f"every command of {chips} was measured from this commit" + " or its code" * asked.old)


if __name__ == "__main__":
    main()

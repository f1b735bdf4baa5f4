"""Cells in processes of their own, each with a time limit; a process that dies or hangs costs its cell only."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.gauntlet.cells import Cell
    from benchmarks.gauntlet.models import Model

SPAWN = multiprocessing.get_context("spawn")
COMMANDS = ("bench", "profile", "what-if")
"""Verbs that survive a crash in a process of their own."""

START_S = 120.0
"""Longest time in which a process may import its packages."""


class Worker:
    """A process that runs the cells of one network after another."""

    made = 0

    def __init__(self, device: str, folder: Path, limit_s: float) -> None:
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_serve, args=(theirs, device, folder, Worker.made), daemon=True)
        Worker.made += 1
        self.process.start()
        theirs.close()
        self.limit_s = limit_s
        self.model: Model | None = None
        self.todo: deque[str] = deque()
        self.alone = False
        self.deadline = time.monotonic() + START_S

    def give(self, model: Model, verbs: Sequence[str], alone: bool) -> None:
        """Hand a network over, with the verbs to run on it; ``alone``: the first in a process of its own."""
        self.model, self.todo, self.alone = model, deque(verbs), alone
        self.pipe.send((model, list(verbs), alone))

    def started(self) -> None:
        self.deadline = time.monotonic() + self.limit_s

    @property
    def overdue(self) -> bool:
        return self.model is not None and time.monotonic() > self.deadline

    def stop(self) -> int | None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
        return self.process.exitcode


def folder_of(spec: str, work: Path) -> Path:
    """The folder of what the cells of a network leave to one another."""
    return work / re.sub(r"\W+", "-", spec)


def run_all(
    work: Mapping[Model, Sequence[str]], device: str, folder: Path, jobs: int, limit_s: float
) -> Iterator[Cell]:
    """The cells of networks and verbs, as they end.

    A command that ends the process that it shares with others runs once more as a user runs it, in a process that may
    fork before it imports PyTorch: there a crash costs a row. The verbs that follow share a process again.
    """
    from benchmarks.gauntlet.cells import Cell

    waiting = deque((model, list(verbs), False) for model, verbs in work.items())
    workers: list[Worker] = []
    try:
        while waiting or any(worker.model for worker in workers):
            while waiting and (idle := [one for one in workers if one.model is None] or len(workers) < jobs):
                if not isinstance(idle, list):
                    workers.append(Worker(device, folder, limit_s))
                    idle = [workers[-1]]
                idle[0].give(*waiting.popleft())
            ready = wait([worker.pipe for worker in workers], timeout=0.5)
            for worker in list(workers):
                ended = ""
                if worker.pipe in ready:
                    try:
                        message = worker.pipe.recv()
                    except (EOFError, OSError):
                        message, ended = None, "traceback"
                    if isinstance(message, Cell):
                        worker.todo.popleft()
                        worker.alone = False
                        yield message
                    if message == "spoiled":  # the verbs that follow are not to blame
                        worker.stop()
                        workers.remove(worker)
                        if worker.model and worker.todo:
                            waiting.appendleft((worker.model, list(worker.todo), False))
                        continue
                    if message == "free":
                        worker.model = None
                    worker.started()
                elif worker.overdue:
                    ended = "timeout"
                if ended:
                    code = worker.stop()
                    workers.remove(worker)
                    again = ended == "traceback" and not worker.alone
                    if worker.model and worker.todo and again and worker.todo[0] in COMMANDS:
                        waiting.appendleft((worker.model, list(worker.todo), True))
                    elif worker.model and worker.todo:
                        why = f"over {limit_s:g} s" if ended == "timeout" else f"its process died with code {code}"
                        yield Cell(worker.model.spec, worker.todo.popleft(), ended, why, limit_s)  # type: ignore[arg-type]
                        if worker.todo:
                            waiting.appendleft((worker.model, list(worker.todo), False))
    finally:
        for worker in workers:
            worker.stop()


def _serve(pipe: Connection, device: str, folder: Path, number: int) -> None:
    """Run what comes through the pipe, on one of the GPUs. The process ends after a traceback, which may spoil it."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["LAMINA_CACHE_DIR"] = str(folder / "cache")  # selections of one sample are for nobody else
    sys.path.insert(0, os.getcwd())
    if device != "cpu":
        import torch

        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        gpus = gpus if gpus != [""] else [str(index) for index in range(torch.cuda.device_count())]
        if gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]  # read when CUDA is used first
    from benchmarks.gauntlet import cells

    cells.hurry()
    with suppress(EOFError, BrokenPipeError):
        while True:
            model, verbs, alone = pipe.recv()
            pipe.send("begin")
            for verb in verbs:
                cell = cells.run(verb, cells.Job(model, device, folder_of(model.spec, folder), alone))
                alone = False
                pipe.send(cell)
                if cell.ending == "traceback" and device != "cpu":
                    pipe.send("spoiled")
                    return
            pipe.send("free")


class Journal:
    """Cells that have ended, one line each, so that a run that was stopped continues."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def read(self) -> dict[tuple[str, str], Cell]:
        """The last ending of each cell."""
        from benchmarks.gauntlet.cells import Cell

        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        cells = (Cell(**json.loads(line)) for line in lines)
        return {(cell.model, cell.verb): cell for cell in cells}

    def add(self, cell: Cell) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(cell)) + "\n")

"""Pieces of work in processes of their own that share a device: they compile side by side, and time one at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from math import inf
from multiprocessing import active_children, get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from lamina.measure import share_device

Rows = list[dict[str, Any]]
Work = Callable[..., Rows]

YIELDING = 15
"""The nice value of what compiles: eager steps that are timed wait for no core."""


def each_in_a_process(
    work: Work, pieces: Sequence[tuple[Any, ...]], processes: int, until: float = inf, end: float = inf
) -> Iterator[Rows]:
    """The rows of each piece when it is finished. With one process, all run in this one.

    Each piece has a new process: one that crashes leaves a line, and the others their rows.

    Args:
        work: is called with a piece, and returns rows.
        pieces: arguments, which can be pickled.
        processes: how many run at the same time.
        until: a time of ``time.time`` after which no piece is started.
        end: a time at which the processes that still run are ended, if there are several.
    """
    if processes == 1:
        yield from (work(*piece) for piece in pieces if time.time() < until)
        return
    cores = max(1, len(os.sched_getaffinity(0)) // processes)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(cores))  # by default, all cores for each process
    with TemporaryDirectory() as folder, ThreadPoolExecutor(processes) as threads:
        lock = Path(folder) / "turns.lock"
        until = min(until, end)
        begun = {threads.submit(_in_a_process, work, piece, lock, cores, until): piece for piece in pieces}
        pending = set(begun)
        while pending:
            left_s = end - time.time()
            if left_s <= 0:  # again and again: one may be about to start
                for child in active_children():
                    child.kill()
            done, pending = wait(pending, None if end == inf else max(left_s, 0.1), FIRST_COMPLETED)
            for one in done:
                try:
                    yield one.result()
                except BrokenProcessPool as error:
                    reason = error if left_s > 0 else "ended at the time limit"
                    print(f"{begun[one]} FAILED: {reason}", flush=True)


def _in_a_process(work: Work, piece: tuple[Any, ...], lock: Path, cores: int, until: float) -> Rows:
    if time.time() >= until:
        return []
    with ProcessPoolExecutor(1, get_context("spawn"), _begin, (lock, cores)) as process:
        return process.submit(work, *piece).result()


def _begin(lock: Path, cores: int) -> None:
    torch.set_num_threads(cores)
    share_device(lock, YIELDING)

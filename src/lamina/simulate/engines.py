"""Execution engines of jobs: in this process, or in a pool of local processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Protocol

from lamina.errors import LaminaError, UsageError
from lamina.simulate.jobs import Job, Progress, Result, execute

Results = Generator[Result, None, None]


class Engine(Protocol):
    """Runs jobs and yields results as they complete, in any order. Closing the generator cancels the others."""

    def submit(self, jobs: Sequence[Job]) -> Results: ...


@dataclass(frozen=True)
class Here:
    """Runs jobs sequentially in this process; ``progress`` is called with the completed fraction of the current job."""

    progress: Progress | None = None

    def submit(self, jobs: Sequence[Job]) -> Results:
        for job in jobs:
            yield execute(job, self.progress)


@dataclass(frozen=True)
class Processes:
    """Runs up to ``workers`` jobs at a time in child processes, which end with this process."""

    workers: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UsageError(f"workers = {self.workers}: expected at least 1")

    def submit(self, jobs: Sequence[Job]) -> Results:
        """Results as they complete.

        Raises:
            LaminaError: a process was killed.
        """
        if not jobs:
            return
        # A fork would copy the locks of torch's threads; a spawned process imports only the simulator.
        spawn = multiprocessing.get_context("spawn")
        others = set(multiprocessing.active_children())
        pool = ProcessPoolExecutor(min(self.workers, len(jobs)), spawn, initializer=_initialize)
        try:
            for done in as_completed([pool.submit(execute, job) for job in jobs]):
                yield done.result()
        except BrokenProcessPool as error:
            raise LaminaError(
                "a simulation process was killed, possibly out of memory: finished results are kept; "
                f"use fewer than {self.workers} workers"
            ) from error
        finally:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()  # its result is no longer needed
            pool.shutdown(cancel_futures=True)


def _initialize() -> None:
    """Ignore Ctrl-C, which the parent handles, and exit with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()

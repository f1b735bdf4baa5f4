"""Where jobs run: here, in processes of this machine, or wherever else an engine sends them."""

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
    """Runs jobs. Each result comes as soon as it is there, in any order; closing the generator stops the rest."""

    def submit(self, jobs: Sequence[Job]) -> Results: ...


@dataclass(frozen=True)
class Here:
    """One job after another in this process; ``progress`` is told the share of the one that runs."""

    progress: Progress | None = None

    def submit(self, jobs: Sequence[Job]) -> Results:
        for job in jobs:
            yield execute(job, self.progress)


@dataclass(frozen=True)
class Processes:
    """So many jobs at a time, each in a process that ends with this one."""

    workers: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UsageError(f"workers = {self.workers}: expected at least 1")

    def submit(self, jobs: Sequence[Job]) -> Results:
        """Results as they come.

        Raises:
            LaminaError: a process was killed.
        """
        if not jobs:
            return
        # A fork would copy the locks of torch's threads; a fresh process loads only the simulator.
        fresh = multiprocessing.get_context("spawn")
        others = set(multiprocessing.active_children())
        pool = ProcessPoolExecutor(min(self.workers, len(jobs)), fresh, initializer=_attend)
        try:
            for done in as_completed([pool.submit(execute, job) for job in jobs]):
                yield done.result()
        except BrokenProcessPool as error:
            raise LaminaError(
                "a simulating process was killed, perhaps for want of memory: what had finished is kept; "
                f"ask for fewer than {self.workers} workers"
            ) from error
        finally:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()  # what it does is not wanted any more
            pool.shutdown(cancel_futures=True)


def _attend() -> None:
    """Leave Ctrl-C to the parent, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()

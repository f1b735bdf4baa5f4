"""Tasks in processes of this machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from lamina.errors import UsageError
from lamina.pipeline.sweep.engines import Call, Limits, Outcomes, Worker

T = TypeVar("T")


@dataclass(frozen=True)
class Local:
    """Up to ``workers`` tasks at a time, each in a child process; default: one for each core.

    ``gpus`` are assigned to the workers in turn, so that each task sees one.
    """

    workers: int | None = None
    gpus: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"workers = {self.workers}: expected at least 1")

    def map(self, function: Call, tasks: Sequence[T], limits: Limits) -> Outcomes[T]:
        count = min(self.workers or os.cpu_count() or 1, len(tasks))
        workers = [Worker(self.gpus[index % len(self.gpus)] if self.gpus else "") for index in range(count)]
        todo: SimpleQueue[T] = SimpleQueue()
        done: SimpleQueue[tuple[T, Any]] = SimpleQueue()
        for task in tasks:
            todo.put(task)

        def serve(worker: Worker) -> None:
            while True:
                try:
                    task = todo.get_nowait()
                except Empty:
                    return
                try:
                    done.put((task, worker.call(function, task, limits)))
                except BaseException as error:
                    done.put((task, _Raised(error)))

        threads = [threading.Thread(target=serve, args=(worker,), daemon=True) for worker in workers]
        try:
            for thread in threads:
                thread.start()
            for _ in tasks:
                task, outcome = done.get()
                if isinstance(outcome, _Raised):
                    raise outcome.error
                yield task, outcome
        finally:
            while not todo.empty():
                todo.get()
            for worker in workers:
                worker.close()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()


@dataclass(frozen=True)
class _Raised:
    error: BaseException

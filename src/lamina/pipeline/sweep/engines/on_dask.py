"""Tasks on a Dask cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from lamina.errors import LaminaError, MissingError
from lamina.pipeline.sweep.engines import Call, Limits, Lost, Outcomes, on_this_worker

T = TypeVar("T")
IN_FLIGHT = 4
"""Submitted tasks for each thread of the cluster."""
POLL_S = 10.0
"""Seconds between two looks whether there are workers, while no task completes."""
PATIENCE = 6
"""Looks that find no worker before the sweep ends."""


@dataclass(frozen=True)
class OnDask:
    """Tasks on the cluster whose scheduler is at ``address`` (such as ``tcp://10.0.0.1:8786``).

    Without an address, a cluster of ``workers`` processes starts on this machine and ends with the sweep.
    """

    address: str = ""
    workers: int | None = None

    def __post_init__(self) -> None:
        try:
            import_module("distributed")
        except ImportError as error:
            raise MissingError("Dask is not installed: pip install 'lamina[cluster]'") from error

    def map(self, function: Call, tasks: Sequence[T], limits: Limits) -> Outcomes[T]:
        dask: Any = import_module("distributed")
        with ExitStack() as stack:
            logging.getLogger("distributed").setLevel(logging.CRITICAL)  # a lost worker is reported by the sweep
            cluster: Any = None if self.address else stack.enter_context(self._own(dask))
            address = self.address or cluster.scheduler_address
            try:
                client = stack.enter_context(dask.Client(address, set_as_default=False))
            except (OSError, ValueError) as error:
                raise LaminaError(f"the Dask cluster {address} cannot be used: {error}") from error
            left, running = list(reversed(tasks)), dict[Any, T]()
            done: SimpleQueue[Any] = SimpleQueue()
            slots = IN_FLIGHT * max(1, sum(client.nthreads().values()))
            while left or running:
                while left and len(running) < slots:
                    task = left.pop()
                    future = client.submit(on_this_worker, function, task, limits, pure=False)
                    running[future] = task
                    future.add_done_callback(done.put)
                future = _next(done, client, cluster)
                raised = future.exception()
                if raised is not None and not isinstance(raised, dask.KilledWorker):
                    raise raised
                yield running.pop(future), Lost("its Dask workers were lost") if raised else future.result()

    def _own(self, dask: Any) -> Any:
        """A cluster on this machine."""
        return dask.LocalCluster(
            n_workers=self.workers or os.cpu_count() or 1,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        )


def _next(done: SimpleQueue[Any], client: Any, cluster: Any) -> Any:
    """The next future that is done. Dask waits forever where all workers are gone; a cluster of our own gets new ones.

    Raises:
        LaminaError: there are no workers, and none came.
    """
    missing = 0
    while missing < PATIENCE:
        try:
            return done.get(timeout=POLL_S)
        except Empty:
            missing = 0 if client.nthreads() else missing + 1
            if missing and cluster is not None:
                cluster.scale(len(cluster.worker_spec) + 1)
    raise LaminaError("the Dask cluster has no workers any more: finished results are kept; sweep again with --resume")

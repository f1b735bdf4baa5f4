"""Tasks on a Dask cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from lamina.errors import LaminaError, MissingError
from lamina.pipeline.sweep.engines import Call, Limits, Lost, Outcomes, on_this_worker

T = TypeVar("T")
IN_FLIGHT = 4
"""Submitted tasks for each thread of the cluster."""


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
            address = self.address
            if not address:
                count = self.workers or os.cpu_count() or 1
                cluster = dask.LocalCluster(
                    n_workers=count, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL
                )
                address = stack.enter_context(cluster).scheduler_address
            try:
                client = stack.enter_context(dask.Client(address, set_as_default=False))
            except (OSError, ValueError) as error:
                raise LaminaError(f"the Dask cluster {address} cannot be used: {error}") from error
            left, running = list(reversed(tasks)), dict[Any, T]()
            slots = IN_FLIGHT * max(1, sum(client.nthreads().values()))

            def submit() -> Any:
                task = left.pop()
                future = client.submit(on_this_worker, function, task, limits, pure=False)
                running[future] = task
                return future

            completed = dask.as_completed([submit() for _ in range(min(slots, len(left)))], loop=client.loop)
            for future in completed:
                task = running.pop(future)
                if left:
                    completed.add(submit())
                raised = future.exception()
                if raised is not None and not isinstance(raised, dask.KilledWorker):
                    raise raised
                yield task, Lost("its Dask workers were lost") if raised else future.result()

"""Where the tasks of a sweep run: processes of this machine, a Ray cluster, or a Dask cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

from lamina.errors import UsageError, nearest
from lamina.pipeline.sweep.engines.limits import Limits
from lamina.pipeline.sweep.engines.worker import Lost, Worker

__all__ = ["ENGINES", "Call", "Engine", "Limits", "Lost", "Outcomes", "Worker", "engine_of", "on_this_worker"]

ENGINES = ("local", "ray", "dask")
T = TypeVar("T")
Call = Callable[[Any], Any]
Outcomes = Generator[tuple[T, Any], None, None]


class Engine(Protocol):
    """Runs tasks in parallel.

    ``map`` calls ``function`` with each task in a process that the limits hold for, and yields tasks with their
    results, or :class:`Lost`, as they complete, in any order. Function, tasks and results are pickled. Closing the
    generator cancels what is left. An exception of the function ends it.
    """

    def map(self, function: Call, tasks: Sequence[T], limits: Limits) -> Outcomes[T]: ...


def engine_of(text: str, workers: int | None, gpus: Sequence[str] = ()) -> Engine:
    """The engine that a text names: ``local``, ``ray`` or ``dask``; ``ray:ADDRESS`` is a cluster that runs already.

    Args:
        text: the engine.
        workers: tasks in parallel, of an engine without an address.
        gpus: GPUs of this machine: ``local`` runs one task on each at a time.

    Raises:
        UsageError: the engine is unknown.
        MissingError: its package is not installed.
    """
    name, _, address = text.partition(":")
    if name not in ENGINES:
        raise UsageError(f"--engine: {name!r} is unknown: {nearest(name, ENGINES)}")
    if name == "ray":
        from lamina.pipeline.sweep.engines.on_ray import OnRay

        return OnRay(address, workers, bool(gpus))
    if name == "dask":
        from lamina.pipeline.sweep.engines.on_dask import OnDask

        return OnDask(address, workers)
    if address:
        raise UsageError(f"--engine: local has no address, got {text!r}; use --workers for the number of processes")
    from lamina.pipeline.sweep.engines.local import Local

    return Local(workers or len(gpus) or None, tuple(gpus))


_own = threading.local()


def on_this_worker(function: Call, task: Any, limits: Limits, gpu: str = "") -> Any:
    """Call a function in the child process of this thread of a cluster's worker."""
    workers: dict[str, Worker] = _own.__dict__.setdefault("workers", {})
    if gpu not in workers:
        workers[gpu] = Worker(gpu)
    return workers[gpu].call(function, task, limits)

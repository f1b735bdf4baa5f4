"""Tasks on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from lamina.errors import LaminaError, MissingError
from lamina.pipeline.sweep.engines import Call, Limits, Lost, Outcomes, on_this_worker

T = TypeVar("T")
IN_FLIGHT = 4
"""Submitted tasks for each core of the cluster: a worker never waits for the next one, and few are lost with it."""


@dataclass(frozen=True)
class OnRay:
    """Tasks on the cluster of ``address`` (such as ``auto``, ``10.0.0.1:6379`` or ``ray://host:10001``).

    Without an address, a cluster of ``workers`` processes starts on this machine and ends with the sweep. Each task
    takes one core and, with ``gpu``, one GPU.
    """

    address: str = ""
    workers: int | None = None
    gpu: bool = False

    def __post_init__(self) -> None:
        try:
            import_module("ray")
        except ImportError as error:
            raise MissingError("Ray is not installed: pip install 'lamina[cluster]'") from error

    def map(self, function: Call, tasks: Sequence[T], limits: Limits) -> Outcomes[T]:
        ray: Any = import_module("ray")
        own: dict[str, Any] = {} if self.address else {"num_cpus": self.workers, "include_dashboard": False}
        try:
            ray.init(address=self.address or "local", log_to_driver=False, logging_level="ERROR", **own)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise LaminaError(f"the Ray cluster {self.address or 'of this machine'} cannot be used: {error}") from error
        running: dict[Any, T] = {}
        try:
            remote = ray.remote(num_cpus=1, num_gpus=int(self.gpu), max_retries=0)(_call)
            shared, left = ray.put((function, limits)), list(reversed(tasks))
            slots = IN_FLIGHT * max(1, int(ray.cluster_resources().get("CPU", 1)))
            while left or running:
                while left and len(running) < slots:
                    task = left.pop()
                    running[remote.remote(shared, task)] = task
                ready, _ = ray.wait(list(running), num_returns=1)
                for reference in ready:
                    yield running.pop(reference), _outcome(reference)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)
            ray.shutdown()


def _call(shared: tuple[Call, Limits], task: Any) -> Any:
    ray: Any = import_module("ray")
    function, limits = shared
    return on_this_worker(function, task, limits, ",".join(map(str, ray.get_gpu_ids())))


def _outcome(reference: Any) -> Any:
    ray: Any = import_module("ray")
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        return Lost(f"its Ray worker was lost ({type(error).__name__})")

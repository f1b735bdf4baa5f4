"""The exchange of gradients in data-parallel training."""

# Annotations are evaluated here: PyTorch checks those of a communication hook.

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Exchanged:
    """The gradients that one process exchanged.

    Attributes:
        steps: number of backward passes.
        gradient_bytes: bytes of the gradients of all steps.
        seconds: time in which at least one all-reduce was in progress, which includes waiting for slower processes.
            Much of it overlaps with the backward pass.
    """

    steps: int
    gradient_bytes: int
    seconds: float

    def __str__(self) -> str:
        size = self.gradient_bytes / self.steps if self.steps else 0
        return f"all-reduce of {size:,.0f} bytes of gradients in each of {self.steps} steps, in {self.seconds:.3g} s"


class GradientExchange:
    """A communication hook of DistributedDataParallel: its default all-reduce of means, measured."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._steps = self._bytes = 0
        self._marks: list[tuple[Any, list[Any]]] = []

    def hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
        """Start the all-reduce of a bucket."""
        buffer = bucket.buffer()
        self._bytes += buffer.nbytes
        self._steps += bucket.is_last()
        end: list[Any] = []
        self._marks.append((self._now(), end))
        work = dist.all_reduce(buffer.div_(dist.get_world_size()), async_op=True)

        def ended(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            end.append(self._now())  # on a GPU, the stream of this callback has waited for the all-reduce
            return future.value()[0]

        future: torch.futures.Future[Tensor] = work.get_future().then(ended)
        return future

    def take(self) -> Exchanged:
        """What was exchanged since the last call. Waits for the device."""
        marks, self._marks = [(start, end[0]) for start, end in self._marks], []
        if self.device.type == "cuda" and marks:
            torch.cuda.synchronize(self.device)
            first = marks[0][0]
            marks = [(first.elapsed_time(start) / 1e3, first.elapsed_time(end) / 1e3) for start, end in marks]
        taken = Exchanged(self._steps, self._bytes, covered(marks))
        self._steps = self._bytes = 0
        return taken

    def _now(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def covered(intervals: list[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total

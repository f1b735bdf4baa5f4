"""Times and problem sizes that the measurements of this package share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lamina import measure
from lamina.pipeline.reproduce.measured.judging import Scope

QUICK = measure.Repeat(min_samples=3, max_samples=20, min_time_s=0.05, max_time_s=0.3, warmup=1)
WHOLE = measure.Repeat(min_samples=10, min_time_s=0.02, max_time_s=0.5)


@dataclass(frozen=True)
class Layer:
    """A linear layer, or a convolution with a ``kernel`` and images of ``size``; padding keeps the size."""

    name: str
    inputs: int
    outputs: int
    kernel: int = 0
    size: int = 1

    def dense(self) -> nn.Module:
        if not self.kernel:
            return nn.Linear(self.inputs, self.outputs, bias=False)
        return nn.Conv2d(self.inputs, self.outputs, self.kernel, padding=self.kernel // 2, bias=False)

    def input(self, batch: int) -> Tensor:
        return torch.randn(batch, self.inputs, *((self.size, self.size) if self.kernel else ()))


class Timer:
    """The clock of a device: CUDA events or the CPU's."""

    def __init__(self, scope: Scope):
        self.device = torch.device(scope.device)
        self.clock = measure.clock("cpu" if self.device.type == "cpu" else "events", scope.device)
        self.repeat = QUICK if scope.quick else WHOLE

    def columns(self, call: Callable[[], object]) -> dict[str, Any]:
        """The columns of a timing in a row."""
        return {"timing": self.clock.name, "median_us": self.us(call)}

    def us(self, call: Callable[[], object]) -> float:
        """The median time of a call in us."""
        return self.clock.time(call, repeat=self.repeat).median_us


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for operations on the CPU: times of short operations with several depend on other processes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def step_of(module: nn.Module, x: Tensor) -> Callable[[], object]:
    """Forward and both gradients of one layer."""
    leaf = x.clone().requires_grad_()
    gradient = torch.randn_like(module(leaf))
    weights = list(module.parameters())
    return lambda: torch.autograd.grad(module(leaf), [leaf, *weights], gradient)

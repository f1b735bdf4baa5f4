"""CUDA graphs on the CPU: a graph that calls the function again, and writes into the tensors of the capture."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lamina.pipeline.graphed import model, step
from lamina.pipeline.graphed.state import State

CPU = torch.device("cpu")


class FakeStream:
    def work(self) -> Any:
        return nullcontext()


class FakeGraph:
    """As a CUDA graph, it has no effect when it is captured, and always writes to the same addresses."""

    def __init__(self, fn: Callable[[], Any], kept: Callable[[], list[Tensor]]):
        self.fn = fn
        before = State(kept(), CPU)
        self.parameters = [t for t in before.tensors if isinstance(t, nn.Parameter)]
        grads = [None if p.grad is None else p.grad.clone() for p in self.parameters]
        self.result = fn()
        before.restore()
        self.gradients = [p.grad for p in self.parameters]
        for parameter, grad in zip(self.parameters, grads, strict=True):
            if grad is not None and parameter.grad is not None:
                parameter.grad.copy_(grad)  # gradients that accumulate are tensors of before the capture

    def replay(self) -> None:
        result = self.fn()
        with torch.no_grad():
            for mine, new in zip(tree_leaves(self.result), tree_leaves(result), strict=True):
                if isinstance(mine, Tensor):
                    mine.copy_(new)
            for parameter, static in zip(self.parameters, self.gradients, strict=True):
                if static is not None and parameter.grad is not None and parameter.grad is not static:
                    parameter.grad = static.copy_(parameter.grad)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Fake graphs of a model and an optimizer, whose tensors are passed to what this gives."""
    watched: list[Any] = []

    def kept() -> list[Tensor]:
        tensors: list[Tensor] = []
        for each in watched:
            if isinstance(each, nn.Module):
                tensors += [*each.parameters(), *each.buffers()]
            else:
                tensors += [v for s in each.state.values() for v in s.values() if isinstance(v, Tensor)]
        return tensors

    def record(fn: Callable[[], Any], stream: Any, pool: Any) -> tuple[FakeGraph, Any]:
        graph = FakeGraph(fn, kept)
        return graph, graph.result

    for module in (model, step):
        monkeypatch.setattr(module, "record", record)
        monkeypatch.setattr(module, "Aside", lambda device: FakeStream())
        monkeypatch.setattr(module, "memory_pool", lambda: None)
        monkeypatch.setattr(module, "device_of", lambda model: CPU)
    return lambda *each: watched.extend(each)

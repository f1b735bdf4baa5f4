"""Kernels that are interpreted read and write what they are given and nothing else: Triton itself takes any address."""

from bisect import bisect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder


class Memory:
    """What the kernel that runs now was given, as addresses in order."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        self.starts = self.ends = np.empty(0, np.uint64)

    def give(self, arguments: tuple[object, ...]) -> None:
        storages = [one.untyped_storage() for one in arguments if isinstance(one, torch.Tensor)]
        self.spans = sorted({(storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages})
        self.starts, self.ends = np.array(self.spans, np.uint64).reshape(-1, 2).T

    def check(self, pointers: Any, mask: Any, what: str) -> None:
        """Raise IndexError unless all addresses are of elements within."""
        at = pointers.data[np.broadcast_to(mask.data, pointers.data.shape).astype(bool)]
        if not at.size:
            return
        size = np.uint64(max(8, pointers.get_element_ty().primitive_bitwidth) // 8)
        place = bisect(self.spans, (int(at.min()), np.inf)) - 1
        if place >= 0 and at.max() + size <= self.spans[place][1]:  # all of one argument, as nearly always
            return
        within = np.searchsorted(self.starts, at, side="right").astype(np.int64) - 1
        beyond = (within < 0) | (at + size > self.ends[within]) if len(self.ends) else np.ones(at.shape, bool)
        if beyond.any():
            raise IndexError(f"{what} of {beyond.sum()} elements of {at.size} outside of what the kernel was given")


def hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check every read, write and addition of the interpreter."""
    memory = Memory()
    run: Callable[..., None] = GridExecutor.__call__

    def call(self: Any, *arguments: object, **switches: object) -> None:
        memory.give((*arguments, *switches.values()))
        run(self, *arguments, **switches)

    monkeypatch.setattr(GridExecutor, "__call__", call)
    for name, mask_at in (("create_masked_load", 1), ("create_masked_store", 2), ("create_atomic_rmw", 3)):
        monkeypatch.setattr(InterpreterBuilder, name, checked(memory, name, mask_at))


def checked(memory: Memory, name: str, mask_at: int) -> Callable[..., Any]:
    """An operation of the interpreter, preceded by a check of its addresses."""
    operation: Callable[..., Any] = getattr(InterpreterBuilder, name)
    at = 1 if name == "create_atomic_rmw" else 0

    def run(self: Any, *operands: Any) -> Any:
        memory.check(operands[at], operands[mask_at], name)
        return operation(self, *operands)

    return run

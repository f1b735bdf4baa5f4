"""Launches that find the compiled form by themselves."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lamina.accelerate.runtime import launch as launches
from lamina.accelerate.runtime import triton_ops as ops


class Kernel:
    """Stands for a kernel of Triton's; it remembers what it was told."""

    arg_names = ("x", "size", "INDEX", "BLOCK")

    def __init__(self) -> None:
        self.by_triton: list[Any] = []
        self.direct: list[Any] = []

    def warmup(self, *args: Any, grid: Any, **switches: Any) -> SimpleNamespace:
        def run(x: int, y: int, z: int, stream: Any, number: int, *rest: Any) -> None:
            self.direct.append((number, (x, y, z), rest[4:]))

        return SimpleNamespace(run=run, function=len(self.by_triton), packed_metadata=None)


def test_a_compiled_form_is_found_by_what_it_was_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    monkeypatch.setattr(ops, "INTERPRETED", False)
    monkeypatch.setattr(ops, "by_triton", lambda kernel, *args, **switches: kernel.by_triton.append(args))
    x = torch.zeros(64)
    for tensor, size in ((x, 64), (x, 128), (x, 63), (x[1:], 64), (x.half(), 64), (x, 1), (x, 2**40), (x, 65)):
        launches.launch(kernel, 3, tensor, tensor, size, BLOCK=16, INDEX="i32", num_warps=8)
    launches.launch(kernel, 3, x, x, 64, BLOCK=32, INDEX="i32", num_warps=8)
    launches.launch(kernel, 0, x, x, 65, BLOCK=32, INDEX="i32", num_warps=8)
    assert [args[3] for args in kernel.by_triton] == [64, 63, 64, 64, 1, 2**40, 64], "what is new goes by Triton"
    found = [(number, grid, args[1:]) for number, grid, args in kernel.direct]
    assert found == [(1, (3, 1, 1), (128, "i32", 16)), (2, (3, 1, 1), (65, "i32", 16))]


def test_no_program_is_no_launch() -> None:
    launches.launch(None, 0, torch.ones(1))
    launches.launch(None, (4, 0), torch.ones(1))

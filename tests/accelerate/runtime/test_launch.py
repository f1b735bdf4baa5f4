"""Launches that find the compiled kernel without Triton."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lamina.accelerate.runtime import launch as launches
from lamina.accelerate.runtime import triton_ops as ops
from lamina.accelerate.runtime.bounded_cache import BoundedCache


class Kernel:
    """A fake Triton kernel that records how it is launched."""

    arg_names = ("x", "size", "INDEX", "BLOCK")

    def __init__(self) -> None:
        self.by_triton: list[Any] = []
        self.direct: list[Any] = []

    def warmup(self, *args: Any, grid: Any, **constants: Any) -> SimpleNamespace:
        def run(x: int, y: int, z: int, stream: Any, number: int, *rest: Any) -> None:
            self.direct.append((number, (x, y, z), rest[4:]))

        return SimpleNamespace(run=run, function=len(self.by_triton), packed_metadata=None)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    monkeypatch.setattr(ops, "INTERPRETED", False)
    monkeypatch.setattr(ops, "launch_with_triton", lambda kernel, *args, **constants: kernel.by_triton.append(args))
    monkeypatch.setattr(launches, "supported", lambda: True)
    return Kernel()


def test_a_compiled_kernel_is_found_by_what_it_was_compiled_for(kernel: Kernel) -> None:
    x = torch.zeros(64)
    for tensor, size in ((x, 64), (x, 128), (x, 63), (x[1:], 64), (x.half(), 64), (x, 1), (x, 2**40), (x, 65)):
        launches.launch(kernel, 3, tensor, tensor, size, BLOCK=16, INDEX="i32", num_warps=8)
    launches.launch(kernel, 3, x, x, 64, BLOCK=32, INDEX="i32", num_warps=8)
    launches.launch(kernel, 0, x, x, 65, BLOCK=32, INDEX="i32", num_warps=8)
    assert [args[3] for args in kernel.by_triton] == [64, 63, 64, 64, 1, 2**40, 64]
    found = [(number, grid, args[1:]) for number, grid, args in kernel.direct]
    assert found == [(1, (3, 1, 1), (128, "i32", 16)), (2, (3, 1, 1), (65, "i32", 16))]


def test_by_sizes_arguments_are_not_inspected(kernel: Kernel) -> None:
    x = torch.zeros(64)
    for tensor, t, sizes in ((x, 1, 64), (x, 2, 64), (x, 3, 65), (x[1:], 4, 64), (x[1:], 5, 64), (x.half(), 6, 64)):
        launches.launch(kernel, 3, tensor, tensor, t, sizes=sizes, BLOCK=16, INDEX="i32")
    assert [args[3] for args in kernel.by_triton] == [1, 3, 4, 6]
    assert [args[1] for _, _, args in kernel.direct] == [2, 5]
    empty = x[:0]
    for t in (16, 17):  # without elements, nothing follows from sizes
        launches.launch(kernel, 3, empty, empty, t, sizes=0, BLOCK=16, INDEX="i32")
    assert [args[3] for args in kernel.by_triton[4:]] == [16, 17]


def test_the_table_of_compiled_kernels_is_bounded(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "_compiled", BoundedCache(2))
    for block in (16, 32, 64, 64, 32, 16):
        launches.launch(kernel, 3, torch.zeros(8), torch.zeros(8), 8, BLOCK=block, INDEX="i32")
        assert len(launches._compiled) <= 2
    assert (len(kernel.by_triton), len(kernel.direct)) == (4, 2)  # 16 was evicted


def test_with_untested_versions_triton_launches_every_time(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "supported", lambda: False)
    for _ in range(3):
        launches.launch(kernel, 3, torch.zeros(8), torch.zeros(8), 8, sizes=8, BLOCK=16, INDEX="i32")
    assert (len(kernel.by_triton), len(kernel.direct)) == (3, 0)


def test_a_grid_without_programs_launches_nothing() -> None:
    launches.launch(None, 0, torch.ones(1))
    launches.launch(None, (4, 0), torch.ones(1))

"""Kernels that are compiled and not launched."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.accelerate.runtime import compile_ahead as ahead
from lamina.accelerate.runtime import launch as launching
from lamina.accelerate.runtime import launch_cache
from lamina.accelerate.runtime.launch import launch


class Kernel:
    """Keeps what it was called for."""

    arg_names = ("x", "size", "BLOCK")

    def __init__(self) -> None:
        self.compiled: list[Any] = []
        self.launched = 0

    def warmup(self, *args: Any, grid: tuple[int, ...], **constants: Any) -> Any:
        self.compiled.append((args, grid, constants))
        return SimpleNamespace(run=self.run, function=0, packed_metadata=())

    def run(self, *args: Any) -> None:
        self.launched += 1

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*args: Any, **constants: Any) -> None:
            self.launched += 1

        return run


@pytest.fixture(autouse=True)
def compiled_kernels(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu"):
        return
    monkeypatch.setattr(launching.ops, "INTERPRETED", False)
    monkeypatch.setattr(launching, "supported", lambda: True)
    monkeypatch.setattr(launching, "is_current_device", lambda _: True)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)


def test_within_it_new_kernels_are_compiled_and_not_launched() -> None:
    kernel, x = Kernel(), torch.ones(3)
    with ahead.compile_ahead():
        launch(kernel, 2, x, x, 7, BLOCK=4)
        launch(kernel, 0, x, x, 7, BLOCK=4)  # without programs
    assert kernel.launched == 0 and len(kernel.compiled) == 1
    (args, grid, constants) = kernel.compiled[0]
    assert args[0] is x and args[1] == 7 and grid == (2,) and constants == {"BLOCK": 4}
    launch(kernel, 2, x, x, 7, BLOCK=4)
    assert kernel.launched == 1
    with ahead.compile_ahead():
        launch(kernel, 2, x, x, 7, BLOCK=4)
    assert kernel.launched == 2 and len(kernel.compiled) == 2


def test_it_ends_with_an_error() -> None:
    with pytest.raises(KeyError), ahead.compile_ahead():
        raise KeyError
    assert not ahead.active()


def test_nothing_is_recorded_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_cache, "is_current_device", lambda _: True)
    monkeypatch.setattr(launch_cache, "supported", lambda: True)
    calls = []

    @launch_cache.cached_launches
    def twice(x: Tensor) -> Tensor:
        calls.append(x)
        return 2 * x

    launch_cache.clear()
    with ahead.compile_ahead():
        assert [float(twice(torch.ones(()))) for _ in range(3)] == [2.0] * 3
    assert len(calls) == 3 and not list(launch_cache._plans)
    launch_cache.clear()


def test_backward_passes_run_in_the_callers_thread() -> None:
    with ahead.compile_ahead():
        assert not torch.autograd.is_multithreading_enabled()
    assert torch.autograd.is_multithreading_enabled()


def test_triton_compiles_in_threads() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["FutureKernel", "CompiledKernel"]


@pytest.mark.gpu
@pytest.mark.parametrize("dense", [torch.nn.Linear(256, 320), torch.nn.Conv2d(128, 192, 3, padding=1)])
def test_layers_that_were_compiled_ahead_compute_what_they_should(dense: torch.nn.Module) -> None:
    """Kernels that were not launched are in no launch plan that is replayed afterwards."""
    from lamina import Circulant, convert

    shape = (512, 256) if isinstance(dense, torch.nn.Linear) else (8, 128, 12, 12)
    model, _ = convert(torch.nn.Sequential(dense), Circulant(64, rescale=True, signs=True))
    model, x = model.cuda(), torch.randn(shape, device="cuda", requires_grad=True)
    exact = model[0].to_dense().double()

    def step() -> list[Tensor]:
        y = model(x)
        return [y, *torch.autograd.grad(y.square().sum(), x)]

    with ahead.compile_ahead():
        for _ in range(5):
            step()
    z = x.detach().double().requires_grad_()
    y = exact(z)
    expected = [y, *torch.autograd.grad(y.square().sum(), z)]
    for _ in range(5):
        for ours, theirs in zip(step(), expected, strict=True):
            assert float(((ours - theirs).norm() / theirs.norm()).detach()) < 1e-3


def main() -> None:
    """Compile a kernel for a GPU that is not there."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    @triton.jit
    def doubled(x, y, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, 2 * tl.load(x + at, at < size), at < size)

    driver.set_active(SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
    ))  # fmt: skip
    x = torch.zeros(64)
    with ahead.compile_ahead():
        within = doubled.warmup(x, x, 64, BLOCK=32, grid=(2,))
    after = doubled.warmup(x, x, 64, BLOCK=32, grid=(2,))
    sys.stdout.write(f"{type(within).__name__} {type(after).__name__}")


if __name__ == "__main__":
    main()

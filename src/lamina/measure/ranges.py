"""Named ranges of code: wall time, memory, and NVTX ranges for Nsight Compute."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

K = TypeVar("K", bound=Hashable)


class HostTimes(Generic[K]):
    """Wall time of every range on the calling thread, in microseconds; for synchronous work."""

    def __init__(self) -> None:
        self.samples_us: dict[K, list[float]] = {}

    @contextmanager
    def range(self, key: K) -> Iterator[None]:
        """Add a sample to `key`."""
        start = time.perf_counter_ns()
        yield
        self.samples_us.setdefault(key, []).append((time.perf_counter_ns() - start) / 1e3)


class MemoryUse(Generic[K]):
    """Bytes of torch's CUDA allocator, by range: the peak inside, and the allocated bytes at its end."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.peak_bytes: dict[K, int] = {}
        self.live_bytes: dict[K, int] = {}

    @contextmanager
    def range(self, key: K) -> Iterator[None]:
        """Measure `key`. The allocator counts on the host, so no synchronization is needed."""
        torch.cuda.reset_peak_memory_stats(self.device)
        yield
        self.peak_bytes[key] = torch.cuda.max_memory_allocated(self.device)
        self.live_bytes[key] = torch.cuda.memory_allocated(self.device)


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """An NVTX start/end range. Unlike push/pop, it also covers launches of other threads, such as autograd's."""
    handle = torch.cuda.nvtx.range_start(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_end(handle)


@contextmanager
def profiler_capture(device: torch.device) -> Iterator[None]:
    """The code that a profiler started with `--profile-from-start off` profiles (cudaProfilerStart and Stop)."""
    torch.cuda.synchronize(device)
    torch.cuda.profiler.start()
    try:
        yield
        torch.cuda.synchronize(device)
    finally:
        torch.cuda.profiler.stop()

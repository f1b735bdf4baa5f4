"""Compiling the Triton kernels of many layers at once, before any of them is timed.

A kernel takes Triton a second or more, most of it outside Python's lock. Layers that run one after the other compile
one after the other; here they only hand their kernels over, and threads compile them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from lamina.accelerate.common.operands import HAS_TRITON
from lamina.accelerate.runtime.launch_cache import is_suspended, suspended

if HAS_TRITON:
    from lamina.accelerate.runtime import triton_ops

THREADS = 16


def active() -> bool:
    """Whether kernels are compiled and not launched."""
    return is_suspended()


@contextmanager
def compile_ahead() -> Iterator[None]:
    """Within it, `launch` compiles kernels in threads: what layers return then is not initialized. Those that were
    launched before are launched.

    Backward passes run in the caller's thread. At the end all kernels are compiled; errors of those that do not compile
    show when they are launched. Nothing may be timed or captured meanwhile. Without Triton there is nothing to compile.
    """
    if not HAS_TRITON:
        yield
        return
    threads = min(THREADS, os.cpu_count() or 1)
    with (
        torch.autograd.set_multithreading_enabled(False),
        ThreadPoolExecutor(threads) as pool,
        triton_ops.compiling_in(pool),
        suspended(),
    ):
        yield


def compile_kernel(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Begin to compile a kernel for its arguments."""
    kernel.warmup(*args, grid=grid, **constants)

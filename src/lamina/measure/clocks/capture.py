"""CUDA graph capture of a callable, with recovery from a failed capture."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lamina.errors import UnsupportedError

# Until torch 2.12 the pinned-memory allocator keeps querying the graph of a failed capture whether it is still
# capturing, so that graph may never be freed.
_failed: list[torch.cuda.CUDAGraph] = []


def run_without_sync(fn: Callable[[], object]) -> None:
    """Run `fn` once; UnsupportedError if one of its operators synchronizes with the device, or it refuses a capture.

    A synchronizing operator cannot be captured; detecting it here avoids the side effects of a failed capture.
    Code that asks is told that it is captured: that of Transformers otherwise reads masks on the host.
    """
    mode, error = torch.cuda.get_sync_debug_mode(), None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode is a prototype and does not detect every synchronization
        torch.cuda.set_sync_debug_mode("error")
    try:
        with as_if_captured():
            fn()
        return
    except Exception as raised:
        error = raised
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    waits = isinstance(error, RuntimeError) and "synchronizing" in str(error)
    if not waits:
        fn()  # raises an error that has nothing to do with captures
    needed = "does not synchronize" if waits else "CUDA can capture"
    raise UnsupportedError(
        f"graph clock: expected a callable that {needed}, got: {_reason(error)}; use the 'cupti' or 'events' clock"
    ) from error


@contextmanager
def as_if_captured() -> Iterator[None]:
    """Within it, `torch.cuda.is_current_stream_capturing` is true."""
    asked = torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: True
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = asked


def capture(
    fn: Callable[[], object], copies: int, stream: torch.cuda.Stream, pool: Any = None, mode: str = "global"
) -> torch.cuda.CUDAGraph:
    """A graph of `copies` calls of `fn`, captured on `stream`; UnsupportedError if it cannot be captured.

    Its memory comes from `pool` (`torch.cuda.graph_pool_handle`), or from one of its own. With `mode="thread_local"`,
    other threads may go on to allocate memory, as those that load data do.

    The graph owns the workspaces of its cuBLAS calls: PyTorch keeps one for each stream, and frees all of them when
    ``torch.compile(mode="reduce-overhead")`` captures. A graph that was captured with an older one would go on to use
    memory that is no longer its own (https://github.com/pytorch/pytorch/issues/192061).

    An empty graph counts as a failure: the callable launches nothing, or launches on a stream that is not captured, so
    its time would be zero.
    """
    graph = torch.cuda.CUDAGraph()
    pool = pool or torch.cuda.graph_pool_handle()
    first: Exception | None = None
    try:
        # The outer block restores the current stream: torch's own context does not when the capture fails.
        with (
            warnings.catch_warnings(),
            _own_workspaces(),
            torch.cuda.stream(stream),
            torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode=mode),
        ):
            warnings.filterwarnings("error", "The CUDA Graph is empty")
            try:
                for _ in range(copies):
                    fn()
            except Exception as error:
                first = error  # ending the broken capture raises a second, less specific one
                raise
    except Exception as error:
        _recover(graph, pool, stream)
        raise UnsupportedError(
            f"graph clock: expected a callable that CUDA can capture, got: {_reason(first or error)}; "
            "use the 'cupti' or 'events' clock"
        ) from (first or error)
    return graph


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Without workspaces of cuBLAS from before, so that new ones come from the graph's pool, nor these afterwards."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
    torch.cuda.synchronize()  # no kernel may still use them
    clear()
    try:
        yield
    finally:
        clear()


def _reason(error: Exception) -> str:
    """The first line: CUDA's messages continue with debugging advice."""
    return (str(error).splitlines() or [""])[0] or type(error).__name__


def _recover(graph: torch.cuda.CUDAGraph, pool: tuple[int, int], stream: torch.cuda.Stream) -> None:
    """Reset the state that torch keeps after a failed capture.

    Until torch 2.12 the caching allocator still considers the capture active, and the next `empty_cache` or capture
    fails with an internal assertion. So do the random number generators: the next random operation raises "Offset
    increment outside graph capture" until another capture succeeds.
    """
    device = stream.device_index
    try:
        torch._C._cuda_endAllocateToPool(device, pool)
    except RuntimeError as error:  # torch has already ended it
        if "not currently recording" not in str(error):
            raise
    else:
        torch._C._cuda_releasePool(device, pool)
        _failed.append(graph)
    with torch.cuda.stream(stream):
        token = torch.ones(1, device=stream.device)
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
            token.add_(1)
    torch.cuda.synchronize()

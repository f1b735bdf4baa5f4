"""Capture a callable into a CUDA graph, and leave the process whole when that fails."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from lamina.errors import UnsupportedError

# Until torch 2.12 the pinned-memory allocator keeps asking the graph of a failed capture whether it is still
# capturing, so that graph may never be freed.
_failed: list[torch.cuda.CUDAGraph] = []


def run_without_sync(fn: Callable[[], object]) -> None:
    """Run `fn` once; UnsupportedError if one of its operators waits for the device.

    Nothing that waits can be captured, and to find out here is free of the harm that a failed capture does.
    """
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype and does not see every wait
        torch.cuda.set_sync_debug_mode("error")
    try:
        fn()
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        raise UnsupportedError(
            f"graph clock: expected a callable that never waits for the device, got: {_reason(error)}; "
            "use the 'cupti' or 'events' clock"
        ) from error
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def capture(fn: Callable[[], object], copies: int, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """A graph of `copies` calls of `fn`, captured on `stream`; UnsupportedError if it cannot be captured.

    A callable that leaves the graph empty cannot: it launches nothing, or launches on a stream that is not
    being captured, and its time would come out as zero.
    """
    graph = torch.cuda.CUDAGraph()
    pool = torch.cuda.graph_pool_handle()
    first: Exception | None = None
    try:
        # The outer block restores the current stream: torch's own context does not when the capture fails.
        with (
            warnings.catch_warnings(),
            torch.cuda.stream(stream),
            torch.cuda.graph(graph, pool=pool, stream=stream),
        ):
            warnings.filterwarnings("error", "The CUDA Graph is empty")
            try:
                for _ in range(copies):
                    fn()
            except Exception as error:
                first = error  # ending the broken capture raises a second one over it, which says less
                raise
    except Exception as error:
        _recover(graph, pool, stream)
        raise UnsupportedError(
            f"graph clock: expected a callable that CUDA can capture, got: {_reason(first or error)}; "
            "use the 'cupti' or 'events' clock"
        ) from (first or error)
    return graph


def _reason(error: Exception) -> str:
    """One line: CUDA's messages go on with advice about debugging."""
    return (str(error).splitlines() or [""])[0] or type(error).__name__


def _recover(graph: torch.cuda.CUDAGraph, pool: tuple[int, int], stream: torch.cuda.Stream) -> None:
    """Undo what torch leaves behind when a capture fails.

    Until torch 2.12 the caching allocator still believes in the capture, and the next `empty_cache` or
    capture dies of an internal assertion. The random generators believe in it too, and the next random
    number is refused ("Offset increment outside graph capture"), until another capture ends well.
    """
    device = stream.device_index
    try:
        torch._C._cuda_endAllocateToPool(device, pool)
    except RuntimeError as error:  # torch has ended it itself
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

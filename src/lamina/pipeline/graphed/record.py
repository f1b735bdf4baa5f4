"""Capture of a function into a CUDA graph, with the reason where that fails."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from lamina.errors import UnsupportedError
from lamina.measure.clocks.capture import capture

WARMUP = 2
"""Calls in eager mode before a capture: kernels are compiled, libraries choose algorithms, and state is allocated."""


class Replayable(Protocol):
    """A captured graph."""

    def replay(self) -> None: ...


class Aside:
    """A stream for warm-up and capture: autograd's nodes of parameters belong to the stream that made them."""

    def __init__(self, device: torch.device):
        self.device = device
        self.stream = torch.cuda.Stream(device)

    @contextmanager
    def work(self) -> Iterator[None]:
        """Work on the stream, after what was launched before and before what is launched afterwards."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            yield
        current.wait_stream(self.stream)


def memory_pool() -> Any:
    """A memory pool for graphs whose results are not needed beyond the next replay of any of them."""
    return torch.cuda.graph_pool_handle()


def record(fn: Callable[[], Any], stream: Aside, pool: Any) -> tuple[Replayable, Any]:
    """Capture one call of ``fn``: the graph, and what ``fn`` returned, tensors that each replay overwrites.

    Nothing is executed.

    Raises:
        UnsupportedError: the function cannot be captured, with the line that it stopped at.
    """
    found: list[Any] = []
    try:
        graph = capture(lambda: found.append(fn()), 1, stream.stream, pool=pool, mode="thread_local")
    except UnsupportedError as error:
        cause = error.__cause__ or error
        raise UnsupportedError(
            f"this cannot be captured in a CUDA graph: {_reason(cause)}{_line(cause)}; values must stay on the "
            "device: no .item(), .cpu(), nonzero() or Python branches on them"
        ) from cause
    return graph, found[0]


def _reason(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__


def _line(error: BaseException) -> str:
    """The innermost line outside of PyTorch and lamina."""
    skipped = (Path(torch.__file__).parent, Path(__file__).parents[2])
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(Path(frame.filename).is_relative_to(folder) for folder in skipped)]
    return f", at {own[-1].filename}:{own[-1].lineno} ({own[-1].line})" if own else ""

"""How much device memory a piece of work needs at its peak."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch.profiler import ProfilerActivity

from lamina.measure.device import resolve
from lamina.measure.torch_profiler import torch_profiler


@dataclass
class Peak:
    """`bytes` is filled in when the `peak_memory` block ends."""

    bytes: int | None = None


@contextmanager
def peak_memory(device: torch.device | str) -> Iterator[Peak]:
    """Peak bytes that torch's allocator handed out inside the block, above what it held at the start.

    CUDA: the caching allocator's peak, which it resets; memory that a library takes from CUDA by itself is
    not in it. CPU: the running sum of the allocator's events under torch.profiler, so the block must not
    open a profiler of its own; to free memory from before the block lowers no peak there.
    """
    device = resolve(device)
    peak = Peak()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        torch.cuda.synchronize(device)
        peak.bytes = torch.cuda.max_memory_allocated(device) - before
        return
    with torch_profiler(activities=[ProfilerActivity.CPU], profile_memory=True) as session:
        yield peak
    results = getattr(session.profiler, "kineto_results")  # noqa: B009  (absent from torch's stubs)
    changes = sorted(
        (event for event in results.events() if event.name() == "[memory]"),
        key=lambda event: event.start_ns(),
    )
    peak.bytes = max(accumulate((change.nbytes() for change in changes), initial=0))

"""Peak device memory of a block of code, and the memory that is free."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

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
    """Peak bytes that torch's allocator allocated inside the block, above those at its start.

    CUDA: the peak of the caching allocator, which is reset; memory that a library allocates directly from CUDA is not
    included. CPU: the running sum of the allocator's events under torch.profiler, so the block must not use a profiler
    of its own. Freeing memory that was allocated before the block does not lower the peak.
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


def free_bytes(device: torch.device | str, meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes that this process can still allocate on a device: of a GPU, or of the host. None where it is not known."""
    device = resolve(device)
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    with suppress(OSError):
        if found := re.search(r"^MemAvailable:\s*(\d+) kB$", meminfo.read_text(encoding="ascii"), re.MULTILINE):
            return int(found[1]) << 10
    return None

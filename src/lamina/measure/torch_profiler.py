"""torch's profiler, without the lines that it writes to stderr about each of its sessions."""

from __future__ import annotations

import os
from typing import Any

from torch.profiler import profile


def torch_profiler(**options: Any) -> profile:
    """`torch.profiler.profile` with these options; it speaks only where ``KINETO_LOG_LEVEL`` asks it to."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # read as the first session of the process begins
    return profile(**options)

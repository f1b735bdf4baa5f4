"""torch.profiler, without its messages on stderr."""

from __future__ import annotations

import os
from typing import Any

from torch.profiler import profile


def torch_profiler(**options: Any) -> profile:
    """`torch.profiler.profile` with these options; it logs only if ``KINETO_LOG_LEVEL`` is set."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # read when the first session of the process begins
    return profile(**{"acc_events": True, **options})  # else PyTorch 2.11 warns of sessions that follow; here is one

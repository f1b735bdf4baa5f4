"""How often a workload times each call."""

from __future__ import annotations

from lamina import measure
from lamina.spec import Workload

WARMUP = measure.Repeat().warmup
SHORT_S, SHORT_CALLS = 0.1, 5
"""A short timing lasts so many seconds or calls, whichever is longer."""


def repeat_of(workload: Workload) -> measure.Repeat:
    """``repeat`` samples; without it, as many as their spread requires within ``seconds``."""
    if (n := workload.repeat) is not None:
        return measure.Repeat(n, n, min_time_s=0, max_time_s=float("inf"), warmup=min(n, WARMUP))
    return measure.Repeat(min_time_s=min(0.1, workload.seconds), max_time_s=workload.seconds)


def short_repeat_of(workload: Workload, call_us: float) -> measure.Repeat:
    """The same for one of many timings, of a call that lasts about ``call_us``, in less time if that is short."""
    seconds = min(workload.seconds, max(SHORT_S, SHORT_CALLS * call_us / 1e6))
    return repeat_of(workload.model_copy(update={"seconds": seconds}))

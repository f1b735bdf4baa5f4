"""The scheduling priority of all threads of this process, as a nice value: a large one yields to others."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_THREADS = Path("/proc/self/task")


def niceness() -> int:
    """The nice value of the calling thread; 0 where the system has none."""
    return os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0


def may_be_raised() -> bool:
    """Whether this process may have a lower nice value than it has: on Linux, with the privilege of it."""
    if not _THREADS.exists():
        return False
    before = niceness()
    try:
        os.setpriority(os.PRIO_PROCESS, 0, before - 1)
        os.setpriority(os.PRIO_PROCESS, 0, before)
    except PermissionError:
        return False
    return True


def set_niceness(value: int) -> None:
    """Give every thread a nice value; threads and processes that begin later have that of the thread that begins them.

    Linux keeps one for each thread: autograd's launch kernels too.
    """
    for thread in _THREADS.iterdir():
        with suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, int(thread.name), value)

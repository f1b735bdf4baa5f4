"""Limits of a task: wall time and resident memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lamina.errors import MissingError

POLL_S = 0.2
"""Seconds between two measurements of memory."""
_PROCESSES = Path("/proc")


@dataclass(frozen=True)
class Limits:
    """Limits of each task: wall time, and resident memory of its process and all below it. ``None``: no limit."""

    seconds: float | None = None
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.memory_bytes is not None and not (_PROCESSES / "self" / "stat").exists():
            raise MissingError("a memory limit needs /proc, which this system does not have: run without it")

    def wait(self, process: subprocess.Popen[bytes]) -> str:
        """Wait for the end of a process; which limit it exceeded before, if any."""

        def ended(seconds: float | None) -> bool:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                return False
            return True

        return self.until(ended, process.pid)

    def until(self, ended: Callable[[float | None], bool], pid: int) -> str:
        """Wait until ``ended``, which waits up to so many seconds, is true; which limit was exceeded before, if any."""
        waited = 0.0
        while not ended(pause := self._pause(waited)):
            waited += pause or 0.0
            if self.seconds is not None and waited >= self.seconds:
                return f"time limit of {self.seconds:g} s exceeded"
            if self.memory_bytes is not None and (used := resident_bytes(pid)) > self.memory_bytes:
                return f"memory limit of {self.memory_bytes / 2**20:.0f} MiB exceeded: {used / 2**20:.0f} MiB"
        return ""

    def _pause(self, waited: float) -> float | None:
        left = None if self.seconds is None else self.seconds - waited
        if self.memory_bytes is None:
            return left
        return POLL_S if left is None else min(POLL_S, left)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants, in bytes; memory that they share counts in each."""
    pages = 0
    for each in (pid, *descendants(pid)):
        with contextlib.suppress(OSError):
            pages += int((_PROCESSES / str(each) / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def descendants(pid: int) -> tuple[int, ...]:
    """The processes that a process and those below it started, as far as /proc has them."""
    children: dict[int, list[int]] = defaultdict(list)
    for path in _PROCESSES.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children[int(path.read_text(errors="replace").rpartition(")")[2].split()[1])].append(int(path.parent.name))
    found = list(children[pid])
    for each in found:
        found += children[each]
    return tuple(found)

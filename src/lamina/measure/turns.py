"""Processes that share a device take turns: their work overlaps, their timing does not.

Each holds a lock of the device together with the others while it compiles or trains, and alone while it times. Who
waits to be alone goes first: the others stop where they pause, or before they time something themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lamina.errors import MissingError
from lamina.measure.stopwatch import Stopwatch

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


class _Turns:
    """The two locks of a device: the device itself, and the gate through which all who want it pass one by one."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.device, self.gate = path.open("a"), path.with_suffix(".gate").open("a")
        self.waited, self.depth = 0.0, 0
        self.take(fcntl.LOCK_SH)

    def take(self, how: int) -> None:
        watch = Stopwatch()
        fcntl.flock(self.gate, fcntl.LOCK_EX)
        fcntl.flock(self.device, how)
        fcntl.flock(self.gate, fcntl.LOCK_UN)
        self.waited += watch.seconds

    def leave(self) -> None:
        fcntl.flock(self.device, fcntl.LOCK_UN)


_turns: _Turns | None = None


def share_device(path: Path | None) -> None:
    """Take turns with every process that shares the same lock file; ``None`` ends that.

    Raises:
        MissingError: the operating system has no file locks.
    """
    global _turns
    if _turns is not None:
        _turns.leave()
        _turns = None
    if path is None:
        return
    if fcntl is None:
        raise MissingError("sharing a GPU needs file locks, which this operating system does not have")
    _turns = _Turns(path)


@contextmanager
def alone() -> Iterator[None]:
    """While this process times something, no other that shares the device works."""
    if _turns is None or _turns.depth:
        yield
        return
    _turns.leave()
    _turns.take(fcntl.LOCK_EX)
    _turns.depth = 1
    try:
        yield
    finally:
        _turns.depth = 0
        _turns.leave()
        _turns.take(fcntl.LOCK_SH)


def pause() -> None:
    """Let a process that waits to be alone go first; between the steps of long work."""
    if _turns is not None and not _turns.depth:
        _turns.leave()
        _turns.take(fcntl.LOCK_SH)


def waited_s() -> float:
    """Seconds that this process has waited for others since it shares the device."""
    return _turns.waited if _turns is not None else 0.0

"""Processes that share a device take turns: their work overlaps, their timing does not.

Each holds a lock of the device together with the others while it compiles or trains, and alone while it times. Who
waits to be alone goes first: the others stop where they pause, or before they time something themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from lamina.errors import MissingError
from lamina.measure import priority
from lamina.measure.stopwatch import Stopwatch

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


class _Turns:
    """The two locks of a device: the device itself, and the gate through which all who want it pass one by one."""

    def __init__(self, path: Path, yielding: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.device, self.gate = path.open("a"), path.with_suffix(".gate").open("a")
        self.waited, self.held = 0.0, fcntl.LOCK_UN
        self.nice = priority.niceness()
        self.yielding = yielding if yielding and priority.may_be_raised() else 0
        self._yield(self.yielding)

    def hold(self, how: int) -> None:
        """Change how the device is held; nothing is held while this waits."""
        if self.held == fcntl.LOCK_EX:
            self._yield(self.yielding)
        fcntl.flock(self.device, fcntl.LOCK_UN)
        if how != fcntl.LOCK_UN:
            watch = Stopwatch()
            fcntl.flock(self.gate, fcntl.LOCK_EX)
            fcntl.flock(self.device, how)
            fcntl.flock(self.gate, fcntl.LOCK_UN)
            self.waited += watch.seconds
        self.held = how
        if how == fcntl.LOCK_EX:
            self._yield(0)

    def _yield(self, nicer: int) -> None:
        if self.yielding:
            priority.set_niceness(self.nice + nicer)

    @contextmanager
    def holding(self, how: int) -> Iterator[None]:
        before = self.held
        self.hold(how)
        try:
            yield
        finally:
            self.hold(before)

    def close(self) -> None:
        self._yield(0)
        self.device.close()
        self.gate.close()


_turns: _Turns | None = None


def share_device(path: Path | None, yielding: int = 0) -> None:
    """Take turns with every process that shares the same lock file; ``None`` ends that.

    Where the system allows it, this process is nicer by ``yielding`` while it is not alone: who times, and may be
    CPU-bound, then hardly waits for the cores on which others compile.

    Raises:
        MissingError: the operating system has no file locks.
    """
    global _turns
    if _turns is not None:
        _turns.close()
        _turns = None
    if path is None:
        return
    if fcntl is None:
        raise MissingError("sharing a GPU needs file locks, which this operating system does not have")
    _turns = _Turns(path, yielding)
    _turns.hold(fcntl.LOCK_SH)


def alone() -> AbstractContextManager[None]:
    """While this process times something, no other that shares the device works."""
    if _turns is None or _turns.held == fcntl.LOCK_EX:
        return nullcontext()
    return _turns.holding(fcntl.LOCK_EX)


def beside() -> AbstractContextManager[None]:
    """While this process compiles, which hardly uses the device, others may time."""
    if _turns is None or _turns.held == fcntl.LOCK_EX:
        return nullcontext()
    return _turns.holding(fcntl.LOCK_UN)


def pause() -> None:
    """Let a process that waits to be alone go first; between the steps of long work."""
    if _turns is not None and _turns.held == fcntl.LOCK_SH:
        _turns.hold(fcntl.LOCK_SH)


def waited_s() -> float:
    """Seconds that this process has waited for others since it shares the device."""
    return _turns.waited if _turns is not None else 0.0

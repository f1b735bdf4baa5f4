"""Calls of functions in a child process, which is killed where a call exceeds its limits."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Literal

from lamina.pipeline.sweep.engines.child import receive, send
from lamina.pipeline.sweep.engines.limits import Limits

_CHILD = "from lamina.pipeline.sweep.engines.child import main; main()"


@dataclass(frozen=True)
class Lost:
    """No result: the process was killed from outside (``killed``), or exceeded a limit (``limit``)."""

    reason: str
    cause: Literal["killed", "limit"] = "killed"


class Worker:
    """A child process, started at the first call and again after it was lost. One thread at a time may use it.

    Args:
        gpu: what the child sees as ``CUDA_VISIBLE_DEVICES``; empty: what this process sees.
    """

    def __init__(self, gpu: str = "") -> None:
        self._before = ["env", f"CUDA_VISIBLE_DEVICES={gpu}"] if gpu else []
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = self._closed = False
        self._lock = threading.Lock()

    def call(self, function: Callable[[Any], Any], argument: Any, limits: Limits) -> Any | Lost:
        """``function(argument)`` of the child process, or why there is no result; both are pickled.

        Raises:
            Exception: what the function raised.
        """
        process = self._started()
        if process is None:
            return Lost("the worker is closed")
        assert process.stdin is not None and process.stdout is not None
        try:
            if self._starting:  # which the limits do not count
                if receive(process.stdout) is None:
                    return self._lost(process)
                self._starting = False
            send(process.stdin, pickle.dumps((function, argument)))
        except OSError:
            return self._lost(process)
        answered = partial(_readable, process.stdout)
        if reason := limits.until(answered, process.pid):
            self._kill(process)
            return Lost(reason, "limit")
        message = receive(process.stdout)
        if message is None:
            return self._lost(process)
        ok, value = pickle.loads(message)
        if not ok:
            raise value
        return value

    def close(self) -> None:
        """End the child process, also in the middle of a call."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._kill(self._process)

    def _started(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._closed:
                return None
            if self._process is None or self._process.poll() is not None:
                command = [*self._before, sys.executable, "-c", _CHILD]
                pipe = subprocess.PIPE
                self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
                self._starting = True
            return self._process

    def _lost(self, process: subprocess.Popen[bytes]) -> Lost:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)  # it ended, or is about to
        self._kill(process)
        code = process.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if self._starting:
            return Lost(f"its process did not start ({how}): is lamina installed there?")
        return Lost(f"its process was killed ({how}), possibly out of memory")

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """End the whole group; the child itself may have ended before."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]


def _readable(stream: IO[bytes], seconds: float | None) -> bool:
    return bool(select.select([stream], [], [], seconds)[0])

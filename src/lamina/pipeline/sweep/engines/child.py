"""The child process of a :class:`~lamina.pipeline.sweep.engines.worker.Worker`: calls functions, one after another.

A call is a pickled function and its argument on stdin; the answer is pickled on stdout. The process leads a process
group of its own, which it ends as soon as stdin closes: as the parent process ends, however that happens.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
import threading
from queue import SimpleQueue
from typing import IO, Any

LENGTH = struct.Struct("<Q")
"""The length in bytes that precedes each message."""


def send(stream: IO[bytes], message: bytes) -> None:
    """Write a message after its length."""
    stream.write(LENGTH.pack(len(message)) + message)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """The next message; ``None`` where the other side has closed."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    message = stream.read(length)
    return message if len(message) == length else None


def answer(call: bytes) -> bytes:
    """The pickled result of a call: ``(True, value)``, or ``(False, exception)``."""
    try:
        function, argument = pickle.loads(call)
        return pickle.dumps((True, function(argument)))
    except Exception as error:
        try:
            pickle.loads(pickled := pickle.dumps((False, error)))
            return pickled
        except Exception:  # its constructor has other arguments
            return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a function prints is no answer
    calls: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, calls), daemon=True).start()
    send(answers, b"")  # ready
    while True:
        send(answers, answer(calls.get()))


def _read(stream: IO[bytes], calls: Any) -> None:
    while (call := receive(stream)) is not None:
        calls.put(call)
    os.killpg(0, signal.SIGKILL)

"""Layers that end their process or make the GPU unusable: the rest of the work goes on in a new process.

The command forks before PyTorch is imported. The first process waits; the second does the work and writes down which
layer it is about to run. If it dies there, or CUDA refuses all further work, the first one forks again, and the new
process leaves out the layer.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import typer

from lamina.errors import INTERNAL, DeviceLostError

RESTARTS = 8
"""Layers without which a command goes on; with more of them something else is wrong."""
_FORWARDED = (signal.SIGINT, signal.SIGTERM)
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl

enabled = False
"""Whether commands fork; the entry point of ``lamina`` says so, and a command that runs in another program does not."""


@dataclass
class Progress:
    """How far a command came, over all its processes.

    ``finished`` are ids of runs; ``lost`` are layers of the next run, with their implementation, to the reason.
    ``exited`` says that the last process ended by itself.
    """

    file: Path | None = None
    finished: list[str] = field(default_factory=list)
    lost: dict[tuple[str, str], str] = field(default_factory=dict)
    exited: bool = False

    def working(self, layer: str, impl: str) -> None:
        """Write down which layer is about to run."""
        self._write([layer, impl])

    def finish(self, run_id: str) -> None:
        """A run is complete."""
        self.finished.append(run_id)
        self.lost.clear()
        self._write(None)

    def give_up(self, error: DeviceLostError) -> None:
        """End this process at once, since its GPU is unusable; only where another one goes on, else nothing happens."""
        if self.file is not None:
            document = json.loads(self.file.read_text())
            document["reason"] = error.reason
            self.file.write_text(json.dumps(document))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(error.exit_code)  # what PyTorch would tear down needs the GPU

    def end(self) -> None:
        """No layer is running any more."""
        self._write(None)

    def exit(self) -> None:
        """The process ends by itself: whatever kills it does not come by here."""
        if self.file is not None and self.file.exists():
            document = json.loads(self.file.read_text())
            self.file.write_text(json.dumps({**document, "exited": True}))

    def _write(self, doing: list[str] | None) -> None:
        if self.file is not None:
            self.file.write_text(json.dumps({"finished": self.finished, "doing": doing}))


def isolated() -> Progress:
    """Go on in a process of its own, which returns from here, once for each restart.

    Where commands do not fork (`enabled`), this process goes on itself.

    Raises:
        typer.Exit: in the first process, with the exit code of the last one.
    """
    if not enabled or not hasattr(signal, "sigtimedwait"):
        return Progress()
    descriptor, name = tempfile.mkstemp(prefix="lamina-", suffix=".json")
    os.close(descriptor)
    progress = Progress(Path(name))
    progress.end()
    try:
        for _ in range(RESTARTS + 1):
            code = _fork()
            if code is None:
                atexit.register(progress.exit)
                return progress
            if not _survived(progress, code):
                continue
            if not progress.exited and -code not in _FORWARDED:
                raise _broken_off(code)
            raise typer.Exit(code if code >= 0 else 128 - code)
        typer.echo(f"lamina: gave up after {RESTARTS} layers that ended their process; --resume goes on", err=True)
        raise typer.Exit(1)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


@contextlib.contextmanager
def surviving(progress: Progress) -> Iterator[None]:
    """The work of a command. If a layer makes the GPU unusable, another process goes on, where one can."""
    try:
        yield
    except DeviceLostError as error:
        progress.give_up(error)
        raise
    finally:
        progress.end()


def _survived(progress: Progress, code: int) -> bool:
    """Whether a process ended by itself. If not, the layer that it was running is written to ``progress.lost``."""
    document = json.loads((progress.file or Path()).read_text())
    if len(document["finished"]) > len(progress.finished):
        progress.lost.clear()
    progress.finished, progress.exited = document["finished"], document.get("exited", False)
    if document["doing"] is None or -code in _FORWARDED:
        return True
    layer, impl = document["doing"]
    reason = document.get("reason") or f"it ended its process ({_ending(code)})"
    if (layer, impl) in progress.lost:
        typer.echo(f"lamina: {layer} ({impl}): {reason}, though it was left out: gave up", err=True)
        return True
    progress.lost[layer, impl] = reason
    typer.echo(f"{layer} ({impl}): {reason}; going on without it in a new process", err=True)
    return False


def _broken_off(code: int) -> typer.Exit:
    """Say that the process ended outside a layer: while the network was built or traced."""
    typer.echo(
        f"lamina: the process was ended ({_ending(code)}) by the network, or by a library that it calls, while it was"
        " built, traced or run as a whole; what was measured before is kept",
        err=True,
    )
    return typer.Exit(INTERNAL)


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    more = ", out of host memory?" if -code == signal.SIGKILL else ""
    return f"{signal.Signals(-code).name}{more}"


def _fork() -> int | None:
    """Fork; None in the new process, its exit code (negative for a signal) in the old one, which waits for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    watched = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    child = os.fork()
    if child == 0:
        _die_with_parent()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return None
    try:
        while True:
            caught = signal.sigtimedwait(watched, 1.0)
            if caught is not None and caught.si_signo in _FORWARDED and caught.si_code <= 0:
                os.kill(child, caught.si_signo)  # a terminal sends its own to both processes
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _die_with_parent() -> None:
    """Have the kernel end this process if the waiting one is killed; Linux only."""
    import ctypes

    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, int(signal.SIGKILL))

"""How a command ends: errors as one clear message on stderr, and the exit code of their class."""

from __future__ import annotations

import errno
import functools
import inspect
import io
import logging
import multiprocessing
import os
import platform
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import ParamSpec, TypeVar

import typer

from lamina import __version__
from lamina.cli import options
from lamina.errors import INTERNAL, INTERRUPTED, TERMINATED, LaminaError, UsageError

P = ParamSpec("P")
R = TypeVar("R")

_ENDS = (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError)
"""How a command ends on purpose, and a pipe whose reader has left: typer handles these."""

_HOST = {
    errno.ENOSPC: "free some space and run again",
    errno.EDQUOT: "free some of your quota and run again",
    errno.EFBIG: "files may not grow so far: see 'ulimit -f'",
    errno.EROFS: "name a folder that may be written to",
    errno.EACCES: "name a file that may be read and written, or change its permissions",
    errno.EPERM: "name a file that may be read and written, or change its permissions",
    errno.EMFILE: "too many files are open: see 'ulimit -n'",
    errno.ENFILE: "too many files are open on this machine",
    errno.ENOMEM: "out of host memory",
    errno.EAGAIN: "no further process or thread may start: see 'ulimit -u'",
}
"""Errors of the operating system that are no defect of lamina, and what to do about them."""

_log = logging.getLogger(__name__)
_phase: list[str] = []


class _Announcer(MetaPathFinder):
    """Says, once in a command, that PyTorch is imported, which takes seconds, when the import begins."""

    waiting = True

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "torch" and self.waiting:
            self.waiting = False
            typer.echo("importing PyTorch ...", err=True)


_announcer = _Announcer()


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does: what closes files and records ends of runs comes by."""


def begin() -> None:
    """Make up for what a shell may leave out: the standard streams, characters of their encodings, a working directory.

    A stream that is closed becomes one to nowhere, and a character that an encoding lacks a question mark. PyTorch
    does not load where the working directory was deleted: the command ends there, with a message.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        os.getcwd()
    except FileNotFoundError:
        typer.echo("lamina: the working directory was deleted: change to one that exists", err=True)
        sys.exit(UsageError.exit_code)


def end_cleanly_on_sigterm() -> None:
    """Have SIGTERM end a command cleanly. A second one ends it at once."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)
    if multiprocessing.parent_process() is not None:  # a worker, which has nothing to record
        os.kill(os.getpid(), number)
        return
    raise _Terminated


def working_on(what: str) -> None:
    """Note what a command is doing, for the message of an unexpected error."""
    _phase[:] = [what]


def handled(command: Callable[P, R]) -> Callable[P, R]:
    """Turn errors and Ctrl-C into a message and an exit code."""
    resumable = "resume" in inspect.signature(command).parameters

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        _phase.clear()
        _announcer.waiting = True
        if _announcer not in sys.meta_path:
            sys.meta_path.insert(0, _announcer)
        try:
            return command(*args, **kwargs)
        except LaminaError as error:
            typer.echo(f"lamina: {error}", err=True)
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as stop:
            terminated = isinstance(stop, _Terminated)
            kept = resumable and kwargs.get("checkpoint", "elsewhere") is not None
            rest = "; the same command with --resume goes on from what is stored" if kept else ""
            typer.echo(f"lamina: {'terminated' if terminated else 'interrupted'}{rest}", err=True)
            raise typer.Exit(TERMINATED if terminated else INTERRUPTED) from None
        except _ENDS:
            raise
        except SystemExit as error:  # lamina itself raises typer.Exit
            if isinstance(error.__context__, BrokenPipeError):  # Rich, where the reader of a pipe has left
                raise typer.Exit(1) from error
            typer.echo(f"lamina: the code of the network ended the program (SystemExit: {error.code})", err=True)
            raise typer.Exit(1) from error
        except Exception as error:
            raise typer.Exit(unexpected(error)) from error

    return wrapper


def unexpected(error: Exception) -> int:
    """Report an error that is not lamina's own, and answer the exit code.

    Of one that the operating system explains, such as a full disk, the message says what to do. One that the code of
    the network raises, such as a failed assertion, is told with its line. Any other is a defect of lamina: one message,
    and the traceback in a file.
    """
    _log.debug("unexpected error", exc_info=error)
    doing = f" ({'; '.join(_phase)})" if _phase else ""
    if advice := _advice(error):
        typer.echo(f"lamina: {advice}{doing}; results stored before the error are kept", err=True)
        return LaminaError.exit_code
    text = next(iter(str(error).strip().splitlines()), "")
    what = f"{type(error).__name__} in '{options.command_line()}'{doing}: {text}"
    place = _raised_by_network(error)
    typer.echo(f"lamina: the network raised {what} ({place})" if place else f"lamina: unexpected {what}", err=True)
    typer.echo(f"the traceback is in {_write(error, doing)}; results stored before the error are kept", err=True)
    return LaminaError.exit_code if place else INTERNAL


def _raised_by_network(error: Exception) -> str:
    """The line of a forward pass that raised the error itself; empty for errors of lamina, PyTorch and Python.

    An operation of PyTorch that fails within a network may have been given wrong tensors by lamina.
    """
    frames = traceback.extract_tb(error.__traceback__)
    files = [Path(frame.filename) for frame in frames]
    ours, library = Path(__file__).parents[1], Path(os.__file__).parent
    packages = [Path(path) for path in sys.path if path.endswith("-packages")]
    torch = [path / "torch" for path in packages]
    called = max((i for i, file in enumerate(files) if file.is_relative_to(ours)), default=-1)
    in_module = any(file.match("torch/nn/modules/module.py") for file in files[called + 1 :])
    if not in_module or any(files[-1].is_relative_to(path) for path in torch):
        return ""
    if files[-1].is_relative_to(library) and not any(files[-1].is_relative_to(path) for path in packages):
        return ""
    return f"{files[-1].name}, line {frames[-1].lineno}"


def _advice(error: Exception) -> str:
    """What the machine lacks and what to do; nothing for other errors."""
    rust = re.search(r"\(os error (\d+)\)", str(error))  # of safetensors
    number = int(rust[1]) if rust else error.errno if isinstance(error, OSError) else None
    file = getattr(error, "filename", None)
    if number in _HOST:
        return f"{f'{file}: ' if file else ''}{os.strerror(number)}: {_HOST[number]}"
    if number and isinstance(file, str) and file:  # not a file descriptor
        named = [Path(word.rpartition("=")[2]) for word in sys.argv[1:]]  # --output=FILE too
        if any(path.is_relative_to(file) for path in named):  # the file, or a folder that it is in
            return f"{file}: {os.strerror(number)}: name another file"
        cache = options.cache_folder()
        within = number != errno.ENOENT and Path(file).is_relative_to(cache)  # lamina's own files may not be missing
        if within or cache.is_relative_to(file):
            return f"{file}: {os.strerror(number)}: name another folder by LAMINA_CACHE_DIR"
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
        return "out of host memory: choose a smaller batch or network, or free memory"
    return ""


def _write(error: Exception, doing: str) -> Path | str:
    """Write a traceback with what is needed to understand it, and answer where."""
    torch = getattr(sys.modules.get("torch"), "__version__", "not imported")
    head = [
        f"{options.command_line()}{doing}",
        f"lamina {__version__}, Python {platform.python_version()}, PyTorch {torch}, {platform.platform()}",
        "",
    ]
    text = "\n".join(head) + "\n" + "".join(traceback.format_exception(error))
    name = f"error-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}.txt"
    for folder in (options.cache_folder() / "errors", Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        except OSError:
            continue
        return folder / name
    return "no file, for none could be written: run again with --log debug"

"""How a command ends: errors as one clear message on stderr, and the exit code of their class."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import platform
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
from lamina.errors import INTERNAL, INTERRUPTED, LaminaError

P = ParamSpec("P")
R = TypeVar("R")

_ENDS = (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError)
"""How a command ends on purpose, and a pipe whose reader has left: typer handles these."""

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
        except KeyboardInterrupt:
            kept = resumable and kwargs.get("checkpoint", "elsewhere") is not None
            rest = "; what was finished is kept, and the same command with --resume goes on from there" if kept else ""
            typer.echo(f"lamina: interrupted{rest}", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except _ENDS:
            raise
        except SystemExit as error:  # lamina itself raises typer.Exit
            typer.echo(f"lamina: the code of the network ended the program (SystemExit: {error.code})", err=True)
            raise typer.Exit(1) from error
        except Exception as error:
            raise typer.Exit(unexpected(error)) from error

    return wrapper


def unexpected(error: Exception) -> int:
    """Report an error that lamina did not foresee: one message, and the traceback in a file; answer the exit code."""
    _log.debug("unexpected error", exc_info=error)
    doing = f" ({'; '.join(_phase)})" if _phase else ""
    what = next(iter(str(error).strip().splitlines()), "")
    typer.echo(f"lamina: unexpected {type(error).__name__} in '{options.command_line()}'{doing}: {what}", err=True)
    typer.echo(f"the traceback is in {_write(error, doing)}; results stored before the error are kept", err=True)
    return INTERNAL


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

"""How a command ends: errors as one clear message on stderr and the exit code of their kind."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from lamina.errors import LaminaError

P = ParamSpec("P")
R = TypeVar("R")

INTERRUPTED = 130


def handled(command: Callable[P, R]) -> Callable[P, R]:
    """Turn lamina's errors and Ctrl-C into a message and an exit code."""
    resumable = "resume" in inspect.signature(command).parameters

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
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

    return wrapper

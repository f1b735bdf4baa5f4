"""How a command ends: errors as one clear message on stderr and the exit code of their kind."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from lamina.errors import LaminaError

P = ParamSpec("P")
R = TypeVar("R")

INTERRUPTED = 130


def handled(command: Callable[P, R]) -> Callable[P, R]:
    """Turn lamina's errors and Ctrl-C into a message and an exit code."""

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except LaminaError as error:
            typer.echo(f"lamina: {error}", err=True)
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt:
            typer.echo("lamina: interrupted; what was measured is in the store (continue with --resume)", err=True)
            raise typer.Exit(INTERRUPTED) from None

    return wrapper

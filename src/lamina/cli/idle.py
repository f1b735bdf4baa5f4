"""``--wait-idle[=SECONDS]``: wait for a machine that nothing else uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

DEFAULT_S = 600
"""Limit of waiting where the option has no value, in seconds."""

WaitIdleOption = Annotated[
    float,
    typer.Option(
        "--wait-idle",
        metavar="[=SECONDS]",
        min=0,
        show_default=False,
        help="Wait until other processes leave the cores and the GPU alone, at most so long; without a value "
        f"{DEFAULT_S} s. Times that were taken on a busy machine say so.",
    ),
]


class IdleCommand(TyperCommand):
    """A command whose ``--wait-idle`` may have no value, which typer does not offer."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        after = [*args, ""][1:]
        whole = [
            f"{word}={DEFAULT_S}" if word == "--wait-idle" and not following[:1].isdecimal() else word
            for word, following in zip(args, after, strict=True)
        ]
        return super().parse_args(ctx, whole)


def wait(limit_s: float, device: str, say: Callable[[str], object]) -> None:
    """Wait until the machine is idle, at most so many seconds; 0 does not wait."""
    if limit_s:
        from lamina import measure

        measure.wait_idle(measure.resolve(device), limit_s, say)

"""Tasks on an engine, again where they were killed."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

from lamina.pipeline.sweep.engines import Call, Engine, Limits, Lost

T = TypeVar("T")
RETRIES = 3
"""Default number of further attempts of a task that was killed."""


class Attempted(NamedTuple):
    """A task with its result, or :class:`Lost`, of its last attempt, and the number of attempts."""

    task: Any
    outcome: Any
    attempts: int


def attempt(
    engine: Engine, function: Call, tasks: Sequence[T], limits: Limits | None = None, retries: int = RETRIES
) -> Generator[Attempted, None, None]:
    """The outcome of every task as it completes.

    A task that was killed from outside, or whose result says so by ``killed``, is tried again after the others, up to
    ``retries`` times. One that exceeded a limit is not: it would do so again.
    """
    todo = list(tasks)
    for number in range(1, retries + 2):
        again: list[T] = []
        with closing(engine.map(function, todo, limits or Limits())) as outcomes:
            for task, outcome in outcomes:
                if number <= retries and _killed(outcome):
                    again.append(task)
                else:
                    yield Attempted(task, outcome, number)
        if not (todo := again):
            return


def _killed(outcome: Any) -> bool:
    return outcome.cause == "killed" if isinstance(outcome, Lost) else bool(getattr(outcome, "killed", False))

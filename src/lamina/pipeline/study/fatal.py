"""What ended a process of a study, or made its GPU unusable: the journal has it, and the study goes on without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lamina.errors import DeviceLostError
from lamina.pipeline.guard import Guard, Lost
from lamina.pipeline.study.journal import Journal

IMPL = "study"
"""In place of an implementation, in what a study says it is working on."""


@dataclass(frozen=True)
class Fatal:
    """Watches over what may end the process: a compiler, kernels of another package, or lamina's own."""

    guard: Guard
    journal: Journal

    def add(self, lost: Lost) -> None:
        """Remember what ended an earlier process."""
        for (what, _), reason in lost.items():
            self.journal.put(_question(what), reason)

    def reason(self, what: str) -> str | None:
        """Why it must not run again; None if it may."""
        question = _question(what)
        return str(self.journal[question]) if question in self.journal else None

    @contextmanager
    def __call__(self, what: str, stage: str) -> Iterator[None]:
        """Watch over what runs in this context.

        Raises:
            DeviceLostError: the GPU is unusable afterwards.
        """
        try:
            with self.guard(what, stage):
                yield
        except DeviceLostError as error:
            self.journal.put(_question(what), error.reason)
            raise


def _question(what: str) -> str:
    return f"fatal {what}"

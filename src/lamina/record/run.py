"""A run: one call of a verb, with everything needed to repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["running", "done", "interrupted", "failed"]


@dataclass(frozen=True)
class Run:
    """One call of a verb such as ``bench``.

    ``fingerprint`` is equal for runs that ask for the same work on the same device and software, so that an
    interrupted one can be resumed. ``config`` is the full configuration, JSON-able.
    """

    id: str
    verb: str
    target: str
    command: str
    started: str
    fingerprint: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    status: Status = "running"
    finished: str | None = None
    remarks: tuple[str, ...] = field(default=())

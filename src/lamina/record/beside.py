"""A published value and ours."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.spec.published import PublishedValue


@dataclass(frozen=True)
class Beside:
    """A published value and ours, as text in the same unit; ``agrees`` within the digits printed."""

    value: PublishedValue
    ours: str
    agrees: bool

"""A published value and ours."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.spec.published import PublishedValue


@dataclass(frozen=True)
class Beside:
    """A published value and ours, as text in the same unit.

    ``agrees`` within the digits printed; a gain agrees if ours is at least as large, a statement if it holds here.
    It is ``None`` where that cannot be told. ``measured`` is ours as a number in the unit of the published value.
    """

    value: PublishedValue
    ours: str
    agrees: bool | None
    measured: float | None = None

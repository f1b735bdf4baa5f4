"""How findings name rows and write numbers."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.record import LayerRun

NAMED = 4
"""How many phases or layers a sentence lists before it says how many more there are."""


def name(row: LayerRun) -> str:
    return f"{row.layer} {row.phase}"


def names(rows: Sequence[LayerRun]) -> str:
    return listed([name(row) for row in rows])


def phases(rows: Sequence[LayerRun]) -> str:
    return "1 phase is" if len(rows) == 1 else f"{len(rows)} phases are"


def listed(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def percent(part: float) -> str:
    return f"{part:.0%}" if part >= 0.1 else f"{part:.1%}"


def ms(us: float) -> str:
    return f"{us / 1e3:,.2f} ms"

"""Options with a fixed set of values."""

from __future__ import annotations

from collections.abc import Collection

from lamina.errors import UsageError, nearest


def check_choice(name: str, value: str, known: Collection[str]) -> None:
    """Refuse an unknown value of an option.

    Raises:
        UsageError: naming the nearest known value.
    """
    if value not in known:
        raise UsageError(f"{name} {value!r} is unknown: {nearest(str(value), known)}")

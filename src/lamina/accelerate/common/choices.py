"""Words that stand for one of a few things."""

from __future__ import annotations

from collections.abc import Collection

from lamina.errors import UsageError, nearest


def check_choice(name: str, value: str, known: Collection[str]) -> None:
    """Refuse an unknown word.

    Raises:
        UsageError: with the nearest known one.
    """
    if value not in known:
        raise UsageError(f"{name} {value!r} is unknown: {nearest(str(value), known)}")

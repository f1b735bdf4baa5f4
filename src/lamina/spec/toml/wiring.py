"""Default inputs of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def default_inputs(name: str, before: str, sources: Sequence[str], mode: Any) -> tuple[str, ...]:
    """The previous layer ``before``; for the first layer, where it is empty, the only input.

    In standalone mode it is the input called ``<layer>.input``, else the only one.
    """
    if mode == "standalone":
        own = f"{name}.input"
        if own in sources:
            return (own,)
    elif before:
        return (before,)
    return tuple(sources) if len(sources) == 1 else ()

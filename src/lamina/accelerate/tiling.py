"""Numbers that tiles are made of."""

from __future__ import annotations


def power(size: int) -> int:
    """The next power of two."""
    return 1 << max(size - 1, 0).bit_length()


def between(low: int, size: int, high: int) -> int:
    """``size``, held to limits."""
    return max(low, min(size, high))

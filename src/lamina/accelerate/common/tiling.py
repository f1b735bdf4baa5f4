"""Numbers that tiles are made of."""

from __future__ import annotations

MULTIPROCESSORS = 132
"""Of the GPU that sizes are made for."""

SHARED = 227 * 1024
"""Bytes of shared memory that the blocks of one of them may have."""


def power(size: int) -> int:
    """The next power of two."""
    return 1 << max(size - 1, 0).bit_length()


def between(low: int, size: int, high: int) -> int:
    """``size``, held to limits."""
    return max(low, min(size, high))

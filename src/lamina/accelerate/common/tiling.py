"""Constants and arithmetic of tile choices."""

from __future__ import annotations

MULTIPROCESSORS = 132
"""Multiprocessors of the GPU that tiles are tuned for (H100, H200)."""

SHARED_MEMORY = 227 * 1024
"""Bytes of shared memory that a block may use on that GPU."""


def next_power_of_2(size: int) -> int:
    """The smallest power of two that is not below ``size``."""
    return 1 << max(size - 1, 0).bit_length()


def clamp(low: int, size: int, high: int) -> int:
    """``size``, clamped to ``[low, high]``."""
    return max(low, min(size, high))

"""The state of the L2 cache at the start of a sample."""

from __future__ import annotations

from lamina.errors import UsageError, nearest

STATES = ("warm", "cold")


def check_l2(l2: str) -> None:
    """UsageError unless `l2` is 'warm' (calls back to back) or 'cold' (flushed before each call)."""
    if l2 not in STATES:
        raise UsageError(f"unknown L2 state {l2!r}: {nearest(l2, STATES)}")

"""How findings and reports name things in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.record.comparison import Setting

NAMED = 4
"""How many names a sentence lists before it says how many more there are."""


def listed(names: Sequence[str], most: int = NAMED) -> str:
    """Some names, and how many more there are.

    >>> listed(["conv1", "conv2", "conv3", "conv4", "conv5", "fc6"])
    'conv1, conv2, conv3, conv4 and 2 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def place(setting: Setting, between: str = " ") -> str:
    """A point of the grid: what tells it from the others.

    >>> place((("precision", "bf16"), ("batch", "16")))
    'bf16 batch 16'
    """
    return between.join(f"batch {at}" if axis == "batch" else at for axis, at in setting if at is not None)


def label(setting: Setting) -> str:
    """The same, where it stands alone.

    >>> label((("precision", "fp32"), ("layout", None), ("batch", "64")))
    'fp32 · batch 64'
    """
    return place(setting, between=" · ")

"""Points of a grid as people read them."""

from __future__ import annotations

from lamina.record.comparison import Setting


def label(setting: Setting) -> str:
    """What tells a setting from the others.

    >>> label((("precision", "fp32"), ("batch", "64")))
    'fp32 · batch 64'
    """
    return " · ".join(f"batch {at}" if axis == "batch" else at for axis, at in setting if at is not None)

"""Time-delay layers, given by the frames that they read: ``context = [-4, -2, 0, 2, 4]``."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from lamina.spec.validated import short

TDNN = "tdnn"
"""Its layer type in files."""


def convolution_of(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of the convolution over time that reads the frames of ``context`` (Peddinti 2015, sec. 2).

    Raises:
        ValueError: ``context`` is not an increasing list of evenly spaced integers.
    """
    given = {"rank", "kernel", "dilation"} & settings.keys()
    if given:
        raise ValueError(f"a tdnn layer has a context instead of {' and '.join(sorted(given))}")
    context = settings.get("context")
    if not isinstance(context, list) or not context or not all(type(frame) is int for frame in context):
        raise ValueError(f"expected context = [-2, -1, 0, 1, 2] or other frames, got {short(context)}")
    steps = {after - before for before, after in pairwise(context)}
    if len(steps) > 1 or min(steps, default=1) < 1:
        raise ValueError(f"expected context to rise by equal steps, got {short(context)}")
    rest = {key: value for key, value in settings.items() if key != "context"}
    return {"rank": 1, "kernel": len(context), "dilation": min(steps, default=1)} | rest

"""Accuracy against the multiplications that are left after elimination: figures 14 and 15."""

from __future__ import annotations

from itertools import pairwise

from lamina.pipeline.reproduce.live import live
from lamina.pipeline.reproduce.measured.judging import Judged, Measurement, Rows

LOSS = 5.0
"""Points of accuracy that figure 15's users tolerate."""

FEWER = 0.01
"""Fraction of the multiplications that a useful point removes at least."""


def front(rows: Rows) -> list[tuple[float, float]]:
    """The removed fraction of multiplications and the accuracy in percent, from the dense network on.

    Raises:
        LookupError: the dense network was not measured.
    """
    dense = next((row for row in rows if row["impl"] == "dense"), None)
    if dense is None:
        raise LookupError("expected the dense network among the rows")
    points = [(1 - 1 / row["reduction"], row["accuracy"]) for row in rows if row["impl"] == "eliminated"]
    return [(0.0, dense["accuracy"]), *sorted(point for point in points if point[0] > 0)]


def accuracy_falls_faster(rows: Rows) -> Judged:
    """The first half of the multiplications that the front removes costs less accuracy than the second.

    Raises:
        LookupError, ValueError: the dense network or the front was not measured.
    """
    known = front(rows)
    if len(known) < 3:
        raise ValueError(f"expected a front of several points, got {len(known) - 1}")
    most = known[-1][0]
    middle = _accuracy(known, most / 2)
    first, last = known[0][1] - middle, middle - known[-1][1]
    text = f"{first:.1f} points lost at {most / 2:.0%} fewer multiplications, {last:.1f} more at {most:.0%}"
    return text, first < last


def useful_points_exist(rows: Rows) -> Judged:
    """More than one point has at least a hundredth fewer multiplications at a loss of at most 5 points.

    Raises:
        LookupError: the dense network was not measured.
    """
    known = front(rows)
    found = [1 / (1 - gone) for gone, accuracy in known[1:] if gone >= FEWER and known[0][1] - accuracy <= LOSS]
    text = ", ".join(f"{reduction:.2f}x" for reduction in found) or "none"
    return f"fewer multiplications within {LOSS:g} points: {text}", len(found) > 1


def _accuracy(known: list[tuple[float, float]], removed: float) -> float:
    """The accuracy at a removed fraction, on the line between the points around it."""
    for (low, before), (high, after) in pairwise(known):
        if low <= removed <= high:
            return before + (after - before) * ((removed - low) / (high - low) if high > low else 0.0)
    raise ValueError(f"expected a fraction up to {known[-1][0]}, got {removed}")


MEASUREMENT = Measurement(
    ("deft_front",),
    statements={"accuracy_falls_faster": accuracy_falls_faster, "useful_points_exist": useful_points_exist},
    run=live("front", "front"),
    command="python -m benchmarks.deft_front full",
)

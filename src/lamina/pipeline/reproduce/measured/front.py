"""Accuracy against the weights that are left after elimination: figures 14 and 15."""

from __future__ import annotations

from lamina.pipeline.reproduce.live import live
from lamina.pipeline.reproduce.measured.judging import Judged, Measurement, Rows

HALF = 0.5
LOSS = 0.05
"""Loss of accuracy that figure 15's users tolerate."""


def front(rows: Rows) -> dict[float, tuple[float, float]]:
    """Accuracy and reduction of weights by keep ratio, from dense to the sparsest."""
    return {row["keep"]: (row["accuracy"], row["reduction"]) for row in sorted(rows, key=lambda row: -row["keep"])}


def accuracy_falls_faster(rows: Rows) -> Judged:
    """Down to half of the inputs less accuracy is lost than beyond.

    Raises:
        KeyError: a keep ratio of 1 or 0.5 was not measured.
    """
    known = front(rows)
    first, last = known[1.0][0] - known[HALF][0], known[HALF][0] - known[min(known)][0]
    return f"{100 * first:.1f} points lost at half of the inputs, {100 * last:.1f} more at {min(known):g}", first < last


def useful_points_exist(rows: Rows) -> Judged:
    """More than one point has fewer weights at a loss of at most 5 points."""
    known = front(rows)
    found = [reduction for accuracy, reduction in known.values() if reduction > 1 and known[1.0][0] - accuracy <= LOSS]
    text = ", ".join(f"{reduction:.2f}x" for reduction in found) or "none"
    return f"fewer weights within {100 * LOSS:g} points: {text}", len(found) > 1


MEASUREMENT = Measurement(
    (),
    statements={"accuracy_falls_faster": accuracy_falls_faster, "useful_points_exist": useful_points_exist},
    run=live("front", "front"),
    command="lamina deft",
)

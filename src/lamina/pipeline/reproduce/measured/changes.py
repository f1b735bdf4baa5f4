"""Gains of a training step of AlexNet by changes: potential optimizations of section 5.2.4."""

from __future__ import annotations

from lamina.pipeline.reproduce.measured.bypass import weight_gradient_gain
from lamina.pipeline.reproduce.measured.judging import Measurement, Rows
from lamina.spec.published import PublishedValue


def gain(change: str, rows: Rows, value: PublishedValue) -> tuple[float, str]:
    """The largest measured gain of a change, in %.

    Raises:
        ValueError: the change was not executed.
    """
    best = max((row for row in rows if row["change"] == change), key=lambda row: float(row["measured_gain"]))
    ours = 100 * best["measured_gain"]
    return ours, f"{ours:.2g} % ({best['layer']}, {best['phase']}, {best['precision']})"


MEASUREMENT = Measurement(
    ("what_if", "l1_bypass"),
    values={
        "without_activations": lambda rows, value: gain("without_activations", rows, value),
        "l1_bypass": weight_gradient_gain,
    },
    command="lamina reproduce run icpe18-optimizations",
)

"""A prediction held against the change executed: how far it was off, and what its rule left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lamina.record import Timing, WhatIf

TOLERATED = 0.25
"""Share of the measured gain by which a predicted one may be off before the miss is explained."""

LEFT_OUT: Mapping[str, str] = {
    "fusion": "the rule keeps the library's product and takes its element-wise passes away; the fused product is "
    "another kernel, its passes may be far from the roofs, and a compiler may choose layouts as well",
    "without_activations": "without activations others of the step's kernels meet other data, clocks and caches",
    "l1_bypass": "the rule counts hits and loads, not what allocating lines in L1 costs",
    "channels_last": "the rule takes layout conversions away and keeps every other kernel; the library has other "
    "kernels for this layout",
    "precision": "the rule keeps the part of the roofs that kernels reach; those of the new precision reach another",
    "cuda_graph": "the rule adds the kernels up; in a graph their ends and beginnings overlap, and a device "
    "that never rests may lower its clock",
    "algorithm": "the rule lets stages move bytes at the copy roof and products reach the usual part of the compute "
    "roof",
}
"""What the rule of each change does not know."""


def gain_error(what_if: WhatIf) -> float | None:
    """The predicted gain less the measured one, as a share of the latter; ``None`` where there is nothing to compare.

    A difference inside the spread of the times, or of one part in a thousand, is none.
    """
    predicted, measured, after = what_if.predicted_gain, what_if.measured_gain, what_if.after
    if predicted is None or measured is None or after is None or what_if.predicted_us is None:
        return None
    difference_us = abs(what_if.predicted_us - after.median_us)
    if difference_us <= max(_spread_us(what_if.before) + _spread_us(after), after.median_us / 1000):
        return 0.0
    return (predicted - measured) / abs(measured) if measured else float("inf")


def miss(what_if: WhatIf) -> str:
    """Why there is no comparison, or by what a prediction missed (`left_out` says why); nothing where it held."""
    if what_if.after is None:
        return what_if.reason
    if what_if.predicted_us is None:
        return f"not predicted: {what_if.rule}"
    error = gain_error(what_if)
    if error is None or abs(error) <= TOLERATED:
        return ""
    off_us = what_if.after.median_us - what_if.predicted_us
    return f"{abs(off_us):.1f} us {'longer' if off_us > 0 else 'shorter'} than predicted"


def left_out(what_ifs: Iterable[WhatIf]) -> list[str]:
    """For each change that was mispredicted, what its rule does not know."""
    missed = {one.change for one in what_ifs if abs(gain_error(one) or 0.0) > TOLERATED}
    return [f"{change}: {LEFT_OUT[change]}" for change in LEFT_OUT if change in missed]


def _spread_us(timing: Timing) -> float:
    """From the median to the farther quartile."""
    return max(timing.q3_us - timing.median_us, timing.median_us - timing.q1_us)

"""Error of what-if predictions against the executed change, and what each rule does not model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lamina.record import Timing, WhatIf

TOLERATED = 0.25
"""Largest relative error of a predicted gain that is not reported as a miss."""

LEFT_OUT: Mapping[str, str] = {
    "fusion": "the rule keeps the library's matrix kernel and removes its element-wise kernels; the fused kernel is "
    "another kernel, its memory passes may be far from the roofline, and a compiler may change layouts as well",
    "without_activations": "without activations the other kernels run with other data, clocks and cache contents",
    "l1_bypass": "the rule models hits and loads, not the cost of allocating lines in L1",
    "channels_last": "the rule removes layout conversions and keeps every other kernel; the library has other "
    "kernels for this layout",
    "precision": "the rule keeps each kernel's fraction of the roofline; those of the new precision reach another",
    "cuda_graph": "the rule sums the kernel times; in a graph consecutive kernels overlap at their ends, and a device "
    "that is never idle may lower its clock",
    "algorithm": "the rule lets stages reach the copy bandwidth and matrix products the usual fraction of the "
    "peak GEMM rate",
    "impl": "cost models have constants fitted to one GPU and know nothing of how well tiles fit; without one, the "
    "layer is taken to keep its fraction of the roofline, and another kernel reaches another",
}
"""What the rule of each change does not model."""


def gain_error(what_if: WhatIf) -> float | None:
    """Relative error of the predicted gain against the measured one; ``None`` if either is absent.

    A difference inside the spread of the times, or below 0.1 % of the time, counts as zero.
    """
    predicted, measured, after = what_if.predicted_gain, what_if.measured_gain, what_if.after
    if predicted is None or measured is None or after is None or what_if.predicted_us is None:
        return None
    difference_us = abs(what_if.predicted_us - after.median_us)
    if difference_us <= max(_spread_us(what_if.before) + _spread_us(after), after.median_us / 1000):
        return 0.0
    return (predicted - measured) / abs(measured) if measured else float("inf")


def miss(what_if: WhatIf) -> str:
    """Why there is no comparison, or by how much a prediction missed (see `left_out`); empty if it held."""
    if what_if.after is None:
        return what_if.reason
    if not what_if.before.median_us or not what_if.after.median_us:
        return f"no kernel ran {'after' if what_if.before.median_us else 'before'}: there is no speedup"
    if what_if.predicted_us is None:
        return f"not predicted: {what_if.rule}"
    error = gain_error(what_if)
    if error is None or abs(error) <= TOLERATED:
        return ""
    off_us = what_if.after.median_us - what_if.predicted_us
    return f"{abs(off_us):.1f} us {'longer' if off_us > 0 else 'shorter'} than predicted"


def left_out(what_ifs: Iterable[WhatIf]) -> list[str]:
    """For each change that was mispredicted, what its rule does not model."""
    missed = {one.change for one in what_ifs if abs(gain_error(one) or 0.0) > TOLERATED}
    return [f"{change}: {LEFT_OUT[change]}" for change in LEFT_OUT if change in missed]


def _spread_us(timing: Timing) -> float:
    """Distance from the median to the farther quartile."""
    return max(timing.q3_us - timing.median_us, timing.median_us - timing.q1_us)

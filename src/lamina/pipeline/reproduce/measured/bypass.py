"""Convolutions with L1 on and off, forward and their weight gradient: sections 5.2.3 and 5.2.4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lamina.pipeline.reproduce.measured.judging import Judged, Measurement, NotMeasured, Row, Rows
from lamina.spec.published import PublishedValue

CHANGE, WEIGHT, FORWARD = "l1_bypass", "backward_weight", "forward"
HIT = "l1tex__t_sector_hit_rate.pct"
SAME = 1.0
"""Percentage points between two hit rates that are the same."""


def weight_gradient_gain(rows: Rows, value: PublishedValue) -> tuple[float, str]:
    """The best gain of a convolution's weight gradient without L1, in %; where none gains, with the reason.

    Raises:
        ValueError: no weight gradient was measured.
    """
    gains = _gains(rows, WEIGHT)
    best = max(gains, key=lambda layer: gains[layer])
    ours = 100 * gains[best]
    text = f"{ours:.2g} % ({best})"
    if ours < 0:
        losses = [-100 * gain for gain in gains.values()]
        text += f": all {len(gains)} lose {min(losses):.1f} to {max(losses):.1f} %{_reused(rows)}"
    return ours, text


def some_gain_both_ways(rows: Rows) -> Judged:
    """Whether a layer gains forward, and one its weight gradient, by more than the spread of the times.

    Raises:
        ValueError: one of the phases was not measured.
    """
    each = {phase: _gains(rows, phase) for phase in (FORWARD, WEIGHT)}
    faster = {phase: sum(_beyond_spread(rows, phase, layer) for layer in gains) for phase, gains in each.items()}
    text = "; ".join(
        f"{phase} {100 * min(gains.values()):+.1f} to {100 * max(gains.values()):+.1f} %, "
        f"{faster[phase]} of {len(gains)} faster"
        for phase, gains in each.items()
    )
    return text, all(faster.values())


def hit_rates_stay(rows: Rows) -> Judged:
    """Whether the hit rate of L1 and texture is the same with L1 on and off, in every phase.

    Raises:
        NotMeasured: no hit rates were counted.
    """
    rates = {
        key: tuple(_counted(at.get(state)) for state in ("on", "off"))
        for key, at in _by_phase(rows).items()
        if all(_counted(at.get(state)) is not None for state in ("on", "off"))
    }
    if not rates:
        raise NotMeasured("hit rates with L1 on and off were not counted")
    apart = {key: (on or 0.0) - (off or 0.0) for key, (on, off) in rates.items()}
    most = max(apart, key=lambda key: abs(apart[key]))
    on, off = rates[most]
    same = sum(abs(change) <= SAME for change in apart.values())
    text = f"the same in {same} of {len(apart)} phases; {' '.join(most)} {on:.0f} % with, {off:.0f} % without"
    return text, same == len(apart)


def _gains(rows: Rows, phase: str) -> dict[str, float]:
    """The gain of each layer's phase."""
    return {
        row["layer"]: float(row["measured_gain"])
        for row in rows
        if row["change"] == CHANGE and row["phase"] == phase and row.get("measured_gain") is not None
    }


def _by_phase(rows: Rows) -> dict[tuple[str, str], dict[str, list[Row]]]:
    """The rows of each layer and phase, with L1 ``on`` and ``off``."""
    found: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        if row["change"] == CHANGE and row.get("l1"):
            found.setdefault((row["layer"], row["phase"]), {}).setdefault(row["l1"], []).append(row)
    return found


def _beyond_spread(rows: Rows, phase: str, layer: str) -> bool:
    """Whether the upper quartile without L1 is below the lower quartile with it."""
    at = _by_phase(rows).get((layer, phase), {})
    on, off = ([row for row in at.get(state, []) if row.get("measured_gain") is not None] for state in ("on", "off"))
    return bool(on and off) and max(row["q3_us"] for row in off) < min(row["q1_us"] for row in on)


def _counted(rows: list[Row] | None) -> float | None:
    """The hit rate that one of the rows has."""
    counters: list[Mapping[str, Any]] = [row["counters"] for row in rows or [] if row.get("counters")]
    return next((float(one[HIT]) for one in counters if HIT in one), None)


def _reused(rows: Rows) -> str:
    """Why L1 pays, with its hit rate in weight gradients if that was counted."""
    rates = [_counted(at.get("on")) for (_, phase), at in _by_phase(rows).items() if phase == WEIGHT]
    known = [rate for rate in rates if rate is not None]
    hits = f" ({min(known):.0f} to {max(known):.0f} % of all)" if known else ""
    return f"; past L1, the same kernels read from L2 what they find in L1{hits}"


MEASUREMENT = Measurement(
    ("l1_bypass",),
    values={"weight gradient gain": weight_gradient_gain},
    statements={"some_gain_both_ways": some_gain_both_ways, "hit_rates_stay": hit_rates_stay},
    command="python -m benchmarks.characterization --stages bypass",
)

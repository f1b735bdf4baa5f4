"""Layers that take more of the energy than of the time, and phases that run at the device's power limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lamina.explain.view import FACT, MATTERS, View
from lamina.explain.wording import name, percent
from lamina.record import Finding, LayerRun
from lamina.record.wording import listed

EXCESS = 1.1
"""Share of the energy over share of the time from which a layer is named."""
AT_LIMIT = 0.95
"""Mean power over the power limit from which the device lowers its clocks."""


def energy_shares(view: View) -> Iterator[Finding]:
    """The energy of all layers, and those whose share of it exceeds their share of the time."""
    layers = _by_layer(view)
    joules, us = (sum(one[place] for one in layers.values()) for place in (0, 1))
    if not joules or not us:
        return
    shares = {layer: (of_j / joules, of_us / us) for layer, (of_j, of_us) in layers.items()}
    above = {
        layer: (energy, time)
        for layer, (energy, time) in shares.items()
        if energy >= MATTERS and energy >= EXCESS * time
    }
    above = dict(sorted(above.items(), key=lambda item: item[1][1] - item[1][0]))
    claim = f"the layers take {joules:.3g} J, on average at {joules / us * 1e6:.0f} W"
    if above:
        named = [
            f"{layer} ({percent(energy)} of it in {percent(time)} of the time)"
            for layer, (energy, time) in above.items()
        ]
        claim += f"; more of the energy than of the time: {listed(named)}"
    evidence: dict[str, float | str | None] = {
        f"share of energy, {layer}": energy for layer, (energy, _) in above.items()
    }
    evidence |= {f"share of time, {layer}": time for layer, (_, time) in above.items()}
    rows = [row for row in view.rows if row.energy_j is not None]
    yield view.finding("energy", claim, {"joules": joules, "watts": joules / us * 1e6, **evidence}, rows, FACT)


def power_limit(view: View) -> Iterator[Finding]:
    """Significant phases whose energy over their time is at the device's limit, or above.

    Energy is measured while a phase is repeated, time within an iteration. Above the limit, the phase cannot be
    repeated at the speed at which it runs once.
    """
    limit_w = view.power_limit_w
    if not limit_w:
        return
    drawn = {row: row.mean_w for row in filter(view.matters, view.rows)}
    watts = {row: w for row, w in drawn.items() if w is not None and w >= AT_LIMIT * limit_w}
    if not watts:
        return
    part = sum(view.share.get(row, 0.0) for row in watts)
    ordered = sorted(watts, key=lambda row: -watts[row])
    claim = (
        f"energy over time of {listed([f'{name(row)} ({watts[row]:.0f} W)' for row in ordered])} is at least "
        f"{AT_LIMIT:.0%} of the power limit of {limit_w:.0f} W, {percent(part)} of the step: one after another, such "
        "phases run at lowered clocks; fewer operations or bytes, or a lower precision, save time and energy there"
    )
    evidence: dict[str, float | str | None] = {f"watts, {name(row)}": watts[row] for row in ordered}
    yield view.finding("power limit", claim, {"limit": limit_w, "share of step": part, **evidence}, ordered, FACT)


def _by_layer(view: View) -> dict[str, tuple[float, float]]:
    """Joules and microseconds of each layer, over the phases that have both."""
    found: dict[str, tuple[float, float]] = {}
    rows: Sequence[LayerRun] = [row for row in view.rows if row.energy_j is not None and row.timing]
    for row in rows:
        joules, us = found.get(row.layer, (0.0, 0.0))
        found[row.layer] = joules + (row.energy_j or 0.0), us + (row.timing.median_us if row.timing else 0.0)
    return found

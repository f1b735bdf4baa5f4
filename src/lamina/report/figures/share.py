"""What part of the time each kind of layer takes."""

from __future__ import annotations

from lamina.record.wording import label
from lamina.report.figures.bars import Quantity, Series, layer_bars
from lamina.report.figures.counters import PERCENT
from lamina.report.figures.material import Scene
from lamina.report.figures.plot import Plot
from lamina.report.palette import SERIES

BAR = 46
"""Height of one setting's bar and its gap, in pixels."""


def time_shares(scene: Scene) -> Plot | str:
    """Share of each kind of layer in the time of its setting, one bar for each setting."""
    settings = scene.material.settings
    spent = [_by_kind(scene.material.scene(setting, scene.phase)) for setting in settings]
    together: dict[str, float] = {}
    for kinds in spent:
        for kind, us in kinds.items():
            together[kind] = together.get(kind, 0.0) + us
    if not sum(together.values()):
        return "nothing has a time"
    ranked = sorted(together, key=lambda kind: -together[kind])
    named = ranked if len(ranked) <= len(SERIES) else ranked[: len(SERIES) - 1]
    totals = [sum(kinds.values()) for kinds in spent]
    parts = [
        {kind: us / total for kind, us in kinds.items()} for kinds, total in zip(spent, totals, strict=True) if total
    ]
    rows = [label(setting) or "all layers" for setting, total in zip(settings, totals, strict=True) if total]
    series = [
        Series(kind, colour, [100 * of.get(kind, 0.0) for of in parts])
        for kind, colour in zip(named, SERIES, strict=False)
    ]
    if len(named) < len(ranked):
        rest = [100 * sum(part for kind, part in of.items() if kind not in named) for of in parts]
        series.append(Series("other kinds", "rest", rest))
    plot = layer_bars(rows, series, Quantity("share of the time", PERCENT, most=100.0), marks=False)
    if plot is None:
        return "nothing has a time"
    return {**plot, "layout": plot["layout"] | {"height": BAR * len(rows) + 150}}


def _by_kind(scene: Scene) -> dict[str, float]:
    spent: dict[str, float] = {}
    for rows in scene.layers.values():
        for row in rows.values():
            if row.timing:
                spent[row.kind] = spent.get(row.kind, 0.0) + row.timing.median_us
    return spent

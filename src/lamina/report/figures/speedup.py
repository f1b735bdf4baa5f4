"""Speedup of each layer and phase against another run."""

from __future__ import annotations

from math import log10

from lamina.record.comparison import Comparison
from lamina.report import units
from lamina.report.figures.bars import LANE, ROW, layer_axis
from lamina.report.figures.material import STEP, Scene
from lamina.report.figures.plot import Plot, axis, frame, plain
from lamina.report.layers import short
from lamina.report.palette import PHASES

TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
FINE = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 2.0)
"""Ticks of an axis that spans less than a factor of four."""


def speedup(scene: Scene) -> Plot | str:
    """Time of the other run over the time of this one; a difference inside the noise is drawn hollow."""
    if not scene.material.comparisons:
        return "there is no other run to compare with: 'lamina report RUN --against OTHER'"
    shown = {(row.layer, row.phase): row for row in scene.rows}
    pairs = [
        it
        for it in scene.material.comparisons
        if it.speedup and it.phase in scene.phases and it.b is not None and shown.get((it.layer, it.phase)) == it.b
        if it.layer in scene.shown
    ]
    if not pairs:
        return f"no phase here has a partner in {scene.material.against}"
    layers = list(dict.fromkeys(it.layer for it in pairs))
    ratios = [it.speedup or 1.0 for it in pairs]
    low, high = min(0.8, *ratios) / 1.15, max(1.25, *ratios) * 1.15
    ticks = FINE if high < 4 * low else TICKS
    layout = frame(height=(ROW + LANE) * len(layers) + 120) | {
        "xaxis": axis(
            "speedup: to the right of 1, this run is faster",
            type="log",
            range=[log10(low), log10(high)],
            tickvals=list(ticks),
            ticktext=[f"{tick:g}x" for tick in ticks],
            fixedrange=True,
        ),
        "yaxis": layer_axis([short(name) for name in layers]),
        "showlegend": scene.phase == STEP,
        "hovermode": "closest",
    }
    return {"data": [_one(len(layers)), *(_marks(phase, pairs, layers) for phase in scene.phases)], "layout": layout}


def _marks(phase: str, pairs: list[Comparison], layers: list[str]) -> Plot:
    members = [it for it in pairs if it.phase == phase]
    lane = (PHASES.index(phase) - 1) * 0.2
    return {
        "type": "scatter",
        "mode": "markers",
        "name": phase,
        "x": [it.speedup for it in members],
        "y": [layers.index(it.layer) + lane for it in members],
        "customdata": [_said(it) for it in members],
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {
            "color": phase,
            "size": 9,
            "symbol": ["circle" if it.verdict in ("faster", "slower") else "circle-open" for it in members],
        },
        "showlegend": bool(members),
    }


def _one(count: int) -> Plot:
    """The line on which both runs are equally fast."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [1.0, 1.0],
        "y": [-0.6, count - 0.4],
        "line": {"color": "muted", "width": 1, "dash": "solid"},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _said(it: Comparison) -> str:
    times = [units.duration(row.timing.median_us) for row in (it.a, it.b) if row and row.timing]
    said = f"{units.number(it.speedup or 0.0)}x, {it.verdict}"
    return f"<b>{plain(it.layer)}</b> {plain(it.phase)}<br>{' → '.join(times)}: {said}"

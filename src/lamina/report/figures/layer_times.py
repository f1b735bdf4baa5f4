"""The bar chart of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.record import LayerRun
from lamina.report import units
from lamina.report.figures.plot import Plot, axis, frame, hover, plain
from lamina.report.layers import by_layer, failed, label, short
from lamina.report.palette import PHASES

BAR = 24
"""Height of a layer's bar and the gap below it, in pixels."""


def time_figure(rows: Sequence[LayerRun], shares: Mapping[LayerRun, float]) -> Plot | None:
    """Time of each layer, one bar of stacked phases each; ``None`` where nothing has a time."""
    layers = by_layer(rows)
    totals = [sum(_us(row) for row in phases.values()) for phases in layers.values()]
    if not any(totals):
        return None
    length, unit = units.axis_unit(max(totals))
    traces = []
    for phase in PHASES:
        timed = [
            (place, row) for place, phases in enumerate(layers.values()) if (row := phases.get(phase)) and row.timing
        ]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": phase,
                "x": [_us(row) / length for _, row in timed],
                "y": [place for place, _ in timed],
                "customdata": [hover(row, shares) for _, row in timed],
                "hovertemplate": "%{customdata}<extra></extra>",
                "marker": {"color": phase},
                "showlegend": bool(timed),
            }
        )
    traces += _totals(layers, totals, length)
    layout = frame(height=BAR * len(layers) + 110, right=64) | {
        "barmode": "stack",
        "bargap": 0.25,
        "xaxis": axis(f"time, {unit}", range=[0, 1.02 * max(totals) / length], fixedrange=True),
        "yaxis": axis(
            tickvals=list(range(len(layers))),
            ticktext=[plain(short(name)) for name in layers],
            range=[len(layers) - 0.4, -0.6],
            showgrid=False,
            zeroline=False,
            fixedrange=True,
        ),
    }
    return {"data": traces, "layout": layout}


def _totals(layers: Mapping[str, Mapping[str, LayerRun]], totals: Sequence[float], length: float) -> list[Plot]:
    """The sum at the end of each bar, apart for layers of which a phase failed."""
    labels = {place: label(phases) for place, phases in enumerate(layers.values())}
    lost = {place for place, phases in enumerate(layers.values()) if failed(phases)}
    return [
        {
            "type": "scatter",
            "mode": "text",
            "x": [totals[place] / length for place in places],
            "y": places,
            "text": [f" {plain(labels[place])}" for place in places],
            "textposition": "middle right",
            "textfont": {"color": colour, "size": 12},
            "cliponaxis": False,
            "hoverinfo": "skip",
            "showlegend": False,
        }
        for colour, places in (("muted", sorted(labels.keys() - lost)), ("alarm", sorted(lost)))
        if places
    ]


def _us(row: LayerRun) -> float:
    return row.timing.median_us if row.timing else 0.0

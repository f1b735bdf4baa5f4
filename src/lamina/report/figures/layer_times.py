"""The bar chart of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.record import LayerRun
from lamina.report import units
from lamina.report.columns import Entry
from lamina.report.figures.plot import Plot, axis, frame, hover, plain
from lamina.report.folding import fold
from lamina.report.layers import MOST, by_layer, failed, label, short, slowest
from lamina.report.palette import PHASES

BAR = 24
"""Height of a layer's bar and the gap below it, in pixels."""


def time_figure(rows: Sequence[LayerRun], shares: Mapping[LayerRun, float]) -> Plot | None:
    """Time of each layer, one bar of stacked phases each; ``None`` where nothing has a time.

    Of more than ``MOST`` layers, equal blocks share a bar; of more than ``MOST`` bars the longest are shown.
    """
    layers = by_layer(rows)
    every = len(layers)
    if every > MOST:
        lines = fold([Entry(row, share=shares.get(row)) for row in rows])
        shares = {line.row: line.share for line in lines if line.share is not None}
        layers = by_layer(line.row for line in lines)
    bars = len(layers)
    layers = {layer: layers[layer] for layer in slowest(layers)}
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
    title = f"time, {unit}{_left_out(every, bars, len(layers))}"
    layout = frame(height=BAR * len(layers) + 110, right=64) | {
        "barmode": "stack",
        "bargap": 0.25,
        "xaxis": axis(title, range=[0, 1.02 * max(totals) / length], fixedrange=True),
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


def _left_out(layers: int, bars: int, shown: int) -> str:
    """How many layers are in how many bars, where they are not as many."""
    folded = f"{layers} layers in {bars} bars" if bars < layers else ""
    longest = f"the {shown} longest of {bars} bars" if shown < bars else ""
    return f" ({'; '.join(filter(None, (folded, longest)))})" if folded or longest else ""


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

"""A table of shaded cells: one row for each layer, one column for each quantity."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.report import units
from lamina.report.figures.bars import layer_axis
from lamina.report.figures.plot import Plot, axis, frame, plain
from lamina.report.layers import short

CELL = 22
"""Height of a row in pixels."""
DARK = 0.65
"""Part of the scale from which a cell is too dark for ink."""


def layer_heat(
    layers: Sequence[str], columns: Sequence[tuple[str, Sequence[float | None]]], most: float, unit: str
) -> Plot | None:
    """Values of named ``columns`` by layer, from 0 to ``most``; cells without a value stay empty but for a dash."""
    rows = [[values[place] for _, values in columns] for place in range(len(layers))]
    if not any(value is not None for row in rows for value in row):
        return None
    heat = {
        "type": "heatmap",
        "x": list(range(len(columns))),
        "y": list(range(len(layers))),
        "z": rows,
        "zmin": 0,
        "zmax": most,
        "colorscale": [[0, "raised"], [1, "heat"]],
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        "hoverongaps": False,
        "customdata": [
            [_said(layer, name, value, unit) for (name, _), value in zip(columns, row, strict=True)]
            for layer, row in zip(layers, rows, strict=True)
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    layout = frame(height=CELL * len(layers) + 150, right=48) | {
        "showlegend": False,
        "xaxis": axis(
            tickvals=list(range(len(columns))),
            ticktext=[plain(name) for name, _ in columns],
            side="top",
            ticks="",
            ticklabeloverflow="allow",
            tickangle=-35,
            showgrid=False,
            zeroline=False,
            fixedrange=True,
            range=[-0.5, len(columns) - 0.5],
        ),
        "yaxis": layer_axis([short(name) for name in layers]) | {"range": [len(layers) - 0.5, -0.5]},
    }
    return {"data": [heat, *_numbers(rows, most)], "layout": layout}


def _numbers(rows: Sequence[Sequence[float | None]], most: float) -> list[Plot]:
    """The values in their cells, on dark shades in the colour of paper."""
    cells = [(x, y, value) for y, row in enumerate(rows) for x, value in enumerate(row)]
    groups = {
        "muted": [cell for cell in cells if cell[2] is None],
        "ink": [cell for cell in cells if cell[2] is not None and cell[2] < DARK * most],
        "paper": [cell for cell in cells if cell[2] is not None and cell[2] >= DARK * most],
    }
    return [
        {
            "type": "scatter",
            "mode": "text",
            "x": [x for x, _, _ in members],
            "y": [y for _, y, _ in members],
            "text": ["–" if value is None else _short(value) for _, _, value in members],
            "textposition": "middle center",
            "textfont": {"color": colour, "size": 11},
            "hoverinfo": "skip",
            "showlegend": False,
        }
        for colour, members in groups.items()
        if members
    ]


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"


def _said(layer: str, name: str, value: float | None, unit: str) -> str:
    shown = "not counted" if value is None else f"{units.number(value)} {unit}"
    return f"<b>{plain(layer)}</b><br>{plain(name)}: {shown}"

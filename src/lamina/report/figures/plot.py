"""What all plots share. They are as plotly describes them, plain data; colours are names of the palette,
which the page fills in.

Plotly reads text as a small subset of HTML, so every name from a record passes through ``plain``.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from lamina.record import LayerRun, Roofline
from lamina.report import units

Plot = dict[str, Any]

CONFIG: Plot = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtons": [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    "modeBarButtonsToRemove": ["sendChartToCloud", "sendDataToCloud"],
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "typesetMath": False,
    "displayModeBar": "hover",
}
"""Nothing sends a figure away: the buttons are a list of what is allowed, not of what is not. Dollars are dollars."""


def plain(text: str) -> str:
    """Text that plotly shows as it is."""
    return escape(text, quote=False).replace("\n", " ")


def hover(row: LayerRun, shares: Mapping[LayerRun, float], roofline: Roofline | None = None) -> str:
    """The hover text of a row's mark."""
    lines = [
        f"<b>{plain(row.layer)}</b> {plain(row.kind)}",
        plain(f"{row.phase} · {row.impl} {row.precision}"),
    ]
    if row.timing:
        quartiles = units.durations(row.timing.q1_us, row.timing.q3_us)
        lines.append(f"{units.duration(row.timing.median_us)} ({quartiles})")
    if row in shares:
        lines.append(f"{units.percent(shares[row])} of the step")
    if roofline and roofline.achieved_gflops:
        lines.append(f"{units.rate(roofline.achieved_gflops)} at {units.number(roofline.intensity or 0)} FLOP/B")
    if roofline and roofline.share is not None:
        lines.append(f"{units.percent(roofline.share)} of its roofline, {plain(roofline.bound)}-bound")
    return "<br>".join(lines)


def frame(height: int, right: int = 12) -> Plot:
    """The frame around a figure, ``height`` and the ``right`` margin in pixels."""
    return {
        "height": height,
        "autosize": True,
        "margin": {"l": 8, "r": right, "t": 40, "b": 48},
        "paper_bgcolor": "paper",
        "plot_bgcolor": "paper",
        "font": {"color": "ink", "size": 13, "family": "system-ui, sans-serif"},
        "legend": {
            "orientation": "h",
            "traceorder": "normal",
            "itemsizing": "constant",
            "x": 0,
            "xanchor": "left",
            "y": 1,
            "yanchor": "bottom",
        },
        "hoverlabel": {
            "bgcolor": "raised",
            "bordercolor": "line",
            "font": {"color": "ink", "size": 13},
            "align": "left",
            "namelength": -1,
        },
        "modebar": {"bgcolor": "paper", "color": "muted", "activecolor": "ink"},
        "dragmode": False,
    }


def axis(title: str = "", **more: Any) -> Plot:
    """One axis."""
    return {
        "title": {"text": title, "standoff": 10},
        "gridcolor": "line",
        "linecolor": "line",
        "zerolinecolor": "line",
        "tickfont": {"color": "ink"},
        "automargin": True,
        **more,
    }

"""Designs of a sweep: speedup against SRAM, and which of them no other beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from lamina.report import units
from lamina.report.figures.figure import Figure
from lamina.report.figures.plot import Plot, axis, frame, plain
from lamina.report.palette import SERIES

TITLE = "Speedup and SRAM"
CAPTION = (
    "Simulated designs: speedup over the sweep's baseline against all SRAM on the chip. Filled marks are designs that "
    "no other of their workload beats, joined by a line; hollow ones are beaten."
)
OWN = {"network", "batch", "layers", "microseconds", "speedup", "sram_bytes", "front", "reason"}
"""Results of a design, beside its settings."""
MIB = 2**20


def pareto_figure(designs: Sequence[Mapping[str, Any]]) -> Figure:
    """A mark for each design that has a speedup, a colour for each network and batch size.

    Args:
        designs: as ``Design.to_dict`` gives them.
    """
    timed = [one for one in designs if one["speedup"] is not None]
    if not timed:
        return Figure("pareto", TITLE, CAPTION, None, "no design has a speedup", wide=True)
    traces: list[Plot] = []
    for place, workload in enumerate(dict.fromkeys((one["network"], one["batch"]) for one in timed)):
        own = [one for one in timed if (one["network"], one["batch"]) == workload]
        colour = SERIES[place % len(SERIES)]
        traces += [_front(own, colour), _marks(own, colour, f"{plain(workload[0])}, batch {workload[1]}")]
    layout = frame(height=420) | {
        "xaxis": axis("SRAM, MiB"),
        "yaxis": axis("speedup over the baseline"),
        "hovermode": "closest",
    }
    return Figure("pareto", TITLE, CAPTION, {"data": traces, "layout": layout}, wide=True)


def _marks(designs: Sequence[Mapping[str, Any]], colour: str, name: str) -> Plot:
    first = sorted(designs, key=lambda one: not one["front"])  # the legend shows the first one's mark
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [one["sram_bytes"] / MIB for one in first],
        "y": [one["speedup"] for one in first],
        "customdata": [_said(one) for one in first],
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {
            "color": colour,
            "size": 10,
            "symbol": ["circle" if one["front"] else "circle-open" for one in first],
        },
        "showlegend": True,
    }


def _front(designs: Sequence[Mapping[str, Any]], colour: str) -> Plot:
    """The best speedup that so much SRAM gives: it rises where a design is."""
    best = sorted((one["sram_bytes"] / MIB, one["speedup"]) for one in designs if one["front"])
    path = best[:1] + [point for (_, y), (x, higher) in pairwise(best) for point in ((x, y), (x, higher))]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [x for x, _ in path],
        "y": [y for _, y in path],
        "line": {"color": colour, "width": 1, "dash": "solid"},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _said(one: Mapping[str, Any]) -> str:
    settings = [f"{key} {value}" for key, value in one.items() if key not in OWN]
    results = f"{units.number(one['speedup'])}x, {units.size(one['sram_bytes'])}"
    return "<br>".join(plain(line) for line in [f"{one['network']}, batch {one['batch']}", *settings, results])

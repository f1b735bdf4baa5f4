"""The roofline chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from typing import Any

from lamina.record import LayerRun, Roofline, Roofs
from lamina.report import units
from lamina.report.figures.plot import Plot, axis, frame, hover, plain
from lamina.report.palette import PHASES, phase_colour

SYMBOLS = {"forward": "circle", "backward_data": "square", "backward_weight": "diamond"}
SAME_ROOF = 0.1
"""Peaks closer than this, in powers of ten, share one label: two would overprint."""


def roofline_figure(
    rows: Sequence[LayerRun],
    roofs: Roofs,
    rooflines: Mapping[LayerRun, Roofline],
    shares: Mapping[LayerRun, float],
) -> Plot | None:
    """Achieved rate over intensity, under the measured peaks; ``None`` where no row can be placed.

    The area of a mark is its share of the step.
    """
    placed = [row for row in rows if (it := rooflines.get(row)) and it.intensity and it.achieved_gflops]
    if not placed or not roofs.gemm_gflops:
        return None
    points = {row: (rooflines[row].intensity or 0.0, rooflines[row].achieved_gflops or 0.0) for row in placed}
    ridges = [gflops / roofs.copy_gbs for gflops in roofs.gemm_gflops.values()]
    left = min(*ridges, *(x for x, _ in points.values())) / 2
    right = max(*ridges, *(x for x, _ in points.values())) * 4
    bottom = min(min(y for _, y in points.values()), left * roofs.copy_gbs) / 2
    top = max(*roofs.gemm_gflops.values(), *(y for _, y in points.values())) * 2.5
    traces = _roof_lines(roofs, {row.precision for row in placed}, left, right)
    for phase in dict.fromkeys([*PHASES, *(row.phase for row in placed)]):
        members = [row for row in placed if row.phase == phase]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": phase,
                "x": [points[row][0] for row in members],
                "y": [points[row][1] * 1e9 for row in members],
                "customdata": [hover(row, shares, rooflines[row]) for row in members],
                "hovertemplate": "%{customdata}<extra></extra>",
                "marker": {
                    "color": phase_colour(phase),
                    "symbol": SYMBOLS.get(phase, "star"),
                    "size": [8 + 26 * shares.get(row, 0.0) ** 0.5 for row in members],
                    "opacity": 0.85,
                    "line": {"color": "paper", "width": 1},
                },
                "showlegend": bool(members),
            }
        )
    layout = frame(height=480) | {
        "hovermode": "closest",
        "xaxis": _log_axis("intensity, FLOP per byte", left, right),
        "yaxis": _log_axis("achieved FLOP/s", bottom * 1e9, top * 1e9),
        "annotations": _roof_labels(roofs, left, right),
    }
    return {"data": traces, "layout": layout}


def _roof_lines(roofs: Roofs, used: set[str], left: float, right: float) -> list[Plot]:
    """The memory roof up to the highest ridge, and a compute roof for each measured precision."""
    ridges = {precision: gflops / roofs.copy_gbs for precision, gflops in roofs.gemm_gflops.items()}
    end = max(ridges.values())
    lines = [([left, end], [left * roofs.copy_gbs, end * roofs.copy_gbs], True)]
    lines += [
        ([ridges[precision], right], [gflops, gflops], precision in used)
        for precision, gflops in roofs.gemm_gflops.items()
    ]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "x": x,
            "y": [gflops * 1e9 for gflops in y],
            "line": {
                "color": "ink" if bold else "muted",
                "width": 2 if bold else 1,
                "dash": "solid" if bold else "dot",
            },
            "hoverinfo": "skip",
            "showlegend": False,
        }
        for x, y, bold in lines
    ]


def _roof_labels(roofs: Roofs, left: float, right: float) -> list[Plot]:
    groups: list[list[tuple[str, float]]] = []
    for precision, gflops in sorted(roofs.gemm_gflops.items(), key=lambda item: item[1]):
        if groups and log10(gflops / groups[-1][-1][1]) < SAME_ROOF:
            groups[-1].append((precision, gflops))
        else:
            groups.append([(precision, gflops)])
    labels = [_note(right, group[-1][1], _rates(group), xanchor="right", yanchor="bottom") for group in groups]
    lowest = min(roofs.gemm_gflops.values()) / roofs.copy_gbs
    middle = (left * lowest**2) ** (1 / 3)
    copy = f"copy {units.bandwidth(roofs.copy_gbs)}"
    labels.append(_note(middle, middle * roofs.copy_gbs, copy, xanchor="right", yanchor="bottom", xshift=-4))
    return labels


def _rates(group: Sequence[tuple[str, float]]) -> str:
    """Precisions that share a label, highest first."""
    return ", ".join(f"{plain(precision)} {units.rate(gflops)}" for precision, gflops in reversed(group))


def _note(intensity: float, gflops: float, text: str, **place: Any) -> Plot:
    """A label on the logarithmic axes of a roofline."""
    at = {"x": log10(intensity), "y": log10(gflops * 1e9)}
    return {**at, "text": text, "showarrow": False, "font": {"color": "muted", "size": 12}, **place}


def _log_axis(title: str, low: float, high: float) -> Plot:
    decades = range(ceil(log10(low)), floor(log10(high)) + 1)
    return axis(
        title,
        type="log",
        range=[log10(low), log10(high)],
        tickvals=[10.0**decade for decade in decades],
        ticktext=[_power(decade) for decade in decades],
        showline=True,
    )


def _power(decade: int) -> str:
    """A power of ten as a tick says it: ``0.01``, ``100``, ``10 T``."""
    if decade < 3:
        return f"{10.0**decade:g}"
    short, prefix = units.count(10.0**decade).split()
    return f"{float(short):.0f} {prefix}"

"""Bars for quantities of layers: one row for each layer, one or more lanes in it, series stacked in a lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lamina.report import units
from lamina.report.figures.plot import Plot, axis, frame, plain
from lamina.report.layers import short

ROW, LANE = 10, 15
"""Height of the gap between two layers and of a lane, in pixels."""
ABSENT = "not counted"


@dataclass(frozen=True)
class Series:
    """One quantity: a value for each layer, ``None`` where it is not known; ``lane`` counts from the top."""

    name: str
    colour: str
    values: Sequence[float | None]
    lane: int = 0


@dataclass(frozen=True)
class Quantity:
    """What an axis measures: its title, and a scale of units that keeps its values short."""

    title: str
    scale: units.Scale = ((1.0, ""),)
    most: float | None = None  # the end of the axis, where the quantity has one

    def unit(self, largest: float) -> tuple[float, str]:
        """How much the unit for values up to ``largest`` is, and its name."""
        return units.axis_unit(largest, self.scale)

    def show(self, value: float) -> str:
        """A value with its unit."""
        length, unit = self.unit(abs(value))
        return f"{units.number(value / length)} {unit}".strip()


def layer_bars(
    layers: Sequence[str],
    series: Sequence[Series],
    quantity: Quantity,
    *,
    marks: bool = True,
    missing: Mapping[str, str] | None = None,
    ticks: Sequence[str] | None = None,
) -> Plot | None:
    """Bars of ``series`` by layer; ``None`` where no value is known.

    ``marks`` writes each lane's sum at its end. A series without any value stays in the legend, which
    marks it; a layer without any is marked as ``missing`` names it. ``ticks`` are short names for the axis.
    """
    totals = lane_totals(len(layers), series)
    known = [total for total in totals.values() if total is not None]
    if not known:
        return None
    lanes = 1 + max(one.lane for one in series)
    length, unit = quantity.unit(max(known))
    traces = [_bars(layers, one, quantity, length, lanes) for one in series]
    if marks:
        traces.append(_sums(totals, quantity, length, lanes))
    traces += _gaps(layers, series, missing or {})
    most = 1.001 * max(quantity.most, *known) / length if quantity.most else 1.02 * max(known) / length or 1.0
    layout = frame(height=(ROW + LANE * lanes) * len(layers) + 120, right=64 if marks else 16) | {
        "barmode": "stack",
        "xaxis": axis(f"{quantity.title}, {unit}" if unit else quantity.title, range=[0, most], fixedrange=True),
        "yaxis": layer_axis(ticks or [short(name) for name in layers]),
        "showlegend": len(series) > 1,
    }
    return {"data": traces, "layout": layout}


def layer_axis(names: Sequence[str]) -> Plot:
    """The axis that names layers, the first one on top."""
    return axis(
        tickvals=list(range(len(names))),
        ticktext=[plain(name) for name in names],
        range=[len(names) - 0.4, -0.6],
        showgrid=False,
        zeroline=False,
        fixedrange=True,
    )


def lane_totals(count: int, series: Sequence[Series]) -> dict[tuple[int, int], float | None]:
    """Sum of each layer's lane, by place and lane: ``None`` unless every series that is known at all is known there."""
    totals: dict[tuple[int, int], float | None] = {}
    for lane in {one.lane for one in series}:
        members = [one for one in series if one.lane == lane and any(value is not None for value in one.values)]
        for place in range(count):
            values = [one.values[place] for one in members]
            known = [value for value in values if value is not None]
            totals[place, lane] = sum(known) if members and len(known) == len(values) else None
    return totals


def _at(place: int, lane: int, lanes: int) -> float:
    """Where a lane lies on the axis of layers."""
    return place + 0.76 * ((lane + 0.5) / lanes - 0.5)


def _bars(layers: Sequence[str], one: Series, quantity: Quantity, length: float, lanes: int) -> Plot:
    known = [(place, value) for place, value in enumerate(one.values) if value is not None]
    return {
        "type": "bar",
        "orientation": "h",
        "name": plain(one.name) if known else f"{plain(one.name)} ({ABSENT})",
        "x": [value / length for _, value in known] or [None],  # plotly has no legend for a trace without points
        "y": [_at(place, one.lane, lanes) for place, _ in known] or [None],
        "width": 0.76 / lanes * 0.92,
        "customdata": [
            f"<b>{plain(layers[place])}</b><br>{plain(one.name)}: {quantity.show(value)}" for place, value in known
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {"color": one.colour},
        "showlegend": True,
    }


def _sums(totals: Mapping[tuple[int, int], float | None], quantity: Quantity, length: float, lanes: int) -> Plot:
    known = [(at, total) for at, total in totals.items() if total is not None]
    return texts(
        [total / length for _, total in known],
        [_at(place, lane, lanes) for (place, lane), _ in known],
        [quantity.show(total) for _, total in known],
    )


def texts(x: Sequence[float], y: Sequence[float], said: Sequence[str]) -> Plot:
    """Words to the right of points."""
    return {
        "type": "scatter",
        "mode": "text",
        "x": list(x),
        "y": list(y),
        "text": [f" {plain(text)}" for text in said],
        "textposition": "middle right",
        "textfont": {"color": "muted", "size": 11},
        "cliponaxis": False,
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _gaps(layers: Sequence[str], series: Sequence[Series], missing: Mapping[str, str]) -> list[Plot]:
    """What stands where a layer's bars would be, had they been counted."""
    places = [place for place in range(len(layers)) if all(one.values[place] is None for one in series)]
    said = [missing.get(layers[place], ABSENT) for place in places]
    return [texts([0.0] * len(places), places, said)] if places else []

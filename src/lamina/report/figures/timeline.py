"""Kernels in order of execution, one lane for each phase."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lamina.record import KernelRun, LayerRun
from lamina.report import units
from lamina.report.figures.material import Scene
from lamina.report.figures.plot import Plot, axis, frame, plain
from lamina.report.palette import PHASES

MARKS = 400
"""Marks that one figure shows at most, or as many as there are layers and phases; more could not be distinguished."""


@dataclass
class Mark:
    """One kernel, or neighbours of one layer and phase too short to be drawn apart."""

    row: LayerRun
    begin_us: float
    us: float
    kernels: int
    names: list[str]


def timeline(scene: Scene) -> Plot | str:
    """Durations end to end: forward from the first layer to the last, backward from the last to the first."""
    rows = [row for row in ordered(scene) if scene.material.kernels.get(row.key)]
    marks = merged([(row, scene.material.kernels[row.key]) for row in rows])
    if not marks:
        return "the run has no kernels: 'lamina profile' records them on a GPU"
    end = marks[-1].begin_us + marks[-1].us
    length, unit = units.axis_unit(end)
    kernels = sum(mark.kernels for mark in marks)
    merging = "" if len(marks) == kernels else f" ({kernels:,} kernels in {len(marks):,} marks)"
    lanes = [phase for phase in PHASES if any(mark.row.phase == phase for mark in marks)]
    layers = list(dict.fromkeys(mark.row.layer for mark in marks))
    traces = [
        _trace(phase, lanes.index(phase), [mark for mark in marks if mark.row.phase == phase], length, layers, scene)
        for phase in lanes
    ]
    layout = frame(height=44 * len(lanes) + 130) | {
        "barmode": "overlay",
        "xaxis": axis(f"time in kernels, {unit}{merging}", range=[0, end / length]),
        "yaxis": axis(
            tickvals=list(range(len(lanes))),
            ticktext=lanes,
            range=[len(lanes) - 0.5, -0.5],
            showgrid=False,
            zeroline=False,
            fixedrange=True,
        ),
        "showlegend": False,
        "dragmode": "zoom",
    }
    return {"data": traces, "layout": layout}


def ordered(scene: Scene) -> list[LayerRun]:
    """Rows as a training step executes them."""
    rows = [row for phases in scene.layers.values() for row in phases.values()]
    forward = [row for row in rows if row.phase == PHASES[0]]
    backward = [row for row in rows if row.phase != PHASES[0]]
    return forward + sorted(backward, key=lambda row: (-row.place, PHASES.index(row.phase)))


def merged(rows: Sequence[tuple[LayerRun, Sequence[KernelRun]]], most: int = MARKS) -> list[Mark]:
    """Marks end to end: neighbours of one row are put together while they are shorter than ``1 / most`` of all."""
    count = sum(len(launches) for _, launches in rows)
    total = sum(it.duration_us for _, launches in rows for it in launches)
    shortest = total / most if count > most else 0.0
    marks: list[Mark] = []
    at = 0.0
    for row, launches in rows:
        for mark in _of_row(row, launches, shortest, at):
            marks.append(mark)
            at += mark.us
    return marks


def _of_row(row: LayerRun, launches: Sequence[KernelRun], shortest: float, begin_us: float) -> Iterator[Mark]:
    open_: Mark | None = None
    for it in launches:
        if open_ is not None and open_.us < shortest and it.duration_us < shortest:
            open_.us += it.duration_us
            open_.kernels += 1
            open_.names.append(it.name)
        else:
            if open_ is not None:
                yield open_
                begin_us += open_.us
            open_ = Mark(row, begin_us, it.duration_us, 1, [it.name])
    if open_ is not None:
        yield open_


def _trace(phase: str, lane: int, marks: Sequence[Mark], length: float, layers: Sequence[str], scene: Scene) -> Plot:
    return {
        "type": "bar",
        "orientation": "h",
        "name": phase,
        "base": [mark.begin_us / length for mark in marks],
        "x": [mark.us / length for mark in marks],
        "y": [lane] * len(marks),
        "width": 0.7,
        "customdata": [_said(mark, scene) for mark in marks],
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {
            "color": phase,
            "opacity": [1.0 if layers.index(mark.row.layer) % 2 else 0.62 for mark in marks],
            "line": {"color": "paper", "width": 0.5},
        },
        "showlegend": False,
    }


def _said(mark: Mark, scene: Scene) -> str:
    first = scene.material.names.get(mark.names[0], mark.names[0])
    what = plain(first) if mark.kernels == 1 else f"{mark.kernels:,} kernels, the first {plain(first)}"
    return f"<b>{plain(mark.row.layer)}</b> {plain(mark.row.phase)}<br>{what}<br>{units.duration(mark.us)}"

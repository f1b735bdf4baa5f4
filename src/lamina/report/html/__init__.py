"""One offline HTML file for a run: figures, findings, tables and provenance. Nothing in it reaches out."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from gzip import compress, decompress
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment

from lamina import __version__
from lamina.errors import UsageError
from lamina.record import Coverage, Epoch, Finding, LayerRun, Roofline, Roofs, Run, WhatIf
from lamina.record.comparison import AXES, Setting, value
from lamina.record.wording import label
from lamina.report import units
from lamina.report.columns import Entry, entries, layer_columns
from lamina.report.figures import STEP, TOPICS, Material
from lamina.report.figures.plot import CONFIG
from lamina.report.folding import LONG, fold
from lamina.report.html import pages
from lamina.report.html.frames import frames, present
from lamina.report.html.provenance import date, facts
from lamina.report.html.words import Passage, bare, words
from lamina.report.layers import by_layer
from lamina.report.palette import DARK, LIGHT, PHASES

__all__ = ["write_report"]

PLOTLY_FILE = "plotly.min.js"
SHORT = 20
"""Rows of a long table that are shown at first."""
TALL = 1600
"""Pixels; a taller figure scrolls within the page."""
NAMES = {"impl": "implementation", "l2": "L2 cache"}
"""How the axes are called where there is room."""


def write_report(
    path: str | os.PathLike[str],
    run: Run,
    rows: Sequence[LayerRun],
    roofs: Roofs | None,
    findings: Sequence[Finding],
    rooflines: Mapping[LayerRun, Roofline] | None = None,
    shares: Mapping[LayerRun, float] | None = None,
    epochs: Sequence[Epoch] = (),
    assets: Literal["inline", "dir"] = "inline",
    *,
    material: Material | None = None,
    headlines: Sequence[Finding] = (),
    passages: Sequence[Passage] = (),
    places: Sequence[str] = (),
    coverages: Sequence[Coverage] = (),
    what_ifs: Sequence[WhatIf] = (),
) -> Path:
    """Write the report of a run and return its path.

    ``rooflines`` and ``shares`` are what explaining the rows gave; without them the report leaves out the
    roofline figure, its columns and the shares. The plotting library is in the page, compressed (2 MB);
    with ``assets="dir"`` it is once in ``plotly.min.js`` (5 MB) beside the reports of a folder, not in each.

    Args:
        material: what figures are drawn from, where that is more than rows, peaks and what was concluded from them.
        headlines: the findings at the top of the page, one line each.
        passages: paragraphs about the network and its layers.
        places: how findings and passages call each setting, in the order of ``material.settings``.

    Raises:
        UsageError: ``assets`` is neither of the two, or ``path`` is no path.
    """
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"path: expected a path, got {path!r}")
    path = Path(path)
    if assets not in ("inline", "dir"):
        raise UsageError(f"assets {assets!r}: expected 'inline' or 'dir'")
    rooflines, shares = rooflines or {}, shares or {}
    material = material or Material(rows, roofs, rooflines, shares)
    figures = frames(material, epochs)
    timed = [row for row in rows if row.timing]
    every = entries(timed, rooflines, shares)
    lines = sorted(fold(every), key=_slowest_first) if len(every) >= LONG else []
    html = _environment().get_template("report.html.j2").render(
        run=run,
        lamina=__version__,
        facts=list(facts(run, timed, roofs)),
        started=date(run.started),
        devices=dict.fromkeys(row.device for row in rows) or [run.environment.get("device", "no device")],
        measured_as=_measured_as(rows),
        totals=[_total(setting, members) for setting, members in material.settings.items()],
        words=words(findings, passages, places, headlines),
        topics=[(topic, TOPICS[topic], figures.shown[topic]) for topic in TOPICS if topic in figures.shown],
        tall=TALL,
        absent=figures.absent,
        figures=_packed({"config": CONFIG, "frames": figures.drawn}),
        drawn=bool(figures.drawn),
        settings=[label(setting) for setting in material.settings],
        phases=present(material),
        unplaced=sum(
            not (rooflines.get(row) and rooflines[row].achieved_gflops) for row in timed if row.phase != STEP
        ),
        columns=layer_columns(timed, reasons=True, lines=lines),
        entries=every,
        folded=lines,
        long=LONG,
        short=SHORT,
        comparisons=material.comparisons,
        against=material.against,
        failed=[row for row in rows if not row.timing],
        coverages=coverages,
        what_ifs=what_ifs,
        epochs=epochs,
        light=LIGHT,
        dark=DARK,
        plotly=b64encode(_library()).decode() if assets == "inline" else None,
        plotly_file=PLOTLY_FILE,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    if assets == "dir":
        path.with_name(PLOTLY_FILE).write_bytes(decompress(_library()))
    path.write_text(html, encoding="utf-8")
    return path


def _packed(figures: Mapping[str, Any]) -> str:
    """Figures as the page unpacks them: JSON, compressed by gzip, in base64. Equal figures give equal text."""
    return b64encode(compress(json.dumps(figures, separators=(",", ":")).encode(), mtime=0)).decode()


@cache
def _library() -> bytes:
    """plotly.js as the package plotly ships it, compressed by gzip to a third; the page unpacks it."""
    return compress(files("plotly").joinpath("package_data", "plotly.min.js").read_bytes(), mtime=0)


def _slowest_first(line: Entry) -> float:
    return -line.row.timing.median_us if line.row.timing else 0.0


def _environment() -> Environment:
    environment = pages.environment()
    environment.filters |= {
        "duration": units.duration,
        "percent": units.percent,
        "number": units.number,
        "key": _key,
        "bare": bare,
        "gain": lambda part: f"{part:+.1%}",
    }
    return environment


def _key(value: float | str | None) -> float | str:
    """What a cell sorts by, as an attribute; empty goes last, and so does what is no number."""
    return "" if value is None or (isinstance(value, float) and not isfinite(value)) else value


def _total(setting: Setting, rows: Sequence[LayerRun]) -> dict[str, Any]:
    """The sums a setting's card shows."""
    layers = by_layer(rows)
    phases = {
        phase: sum(row.timing.median_us for it in layers.values() if (row := it.get(phase)) and row.timing)
        for phase in PHASES
    }
    whole = next((row.timing.median_us for row in rows if row.phase == "step" and row.timing), None)
    return {
        "label": label(setting),
        "layers": len(layers),
        "phases": {phase: us for phase, us in phases.items() if us},
        "us": sum(phases.values()),
        "whole": whole,
        "missing": sum(not row.timing for row in rows),
    }


def _measured_as(rows: Sequence[LayerRun]) -> dict[str, str]:
    """What the rows have on each axis besides the device, all values where they vary."""
    seen = {
        axis: dict.fromkeys(at for row in rows if (at := value(row, axis)) is not None)
        for axis in AXES
        if axis != "device"
    }
    return {NAMES.get(axis, axis): ", ".join(values) for axis, values in seen.items() if values}

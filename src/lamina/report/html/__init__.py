"""One offline HTML file for a run: figures, findings, tables and provenance. Nothing in it reaches out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from lamina import __version__
from lamina.errors import UsageError
from lamina.record import Epoch, Finding, LayerRun, Roofline, Roofs, Run
from lamina.record.comparison import AXES, Setting, by_setting, value
from lamina.report import units
from lamina.report.columns import entries, layer_columns
from lamina.report.html.figures import CONFIG, Figure
from lamina.report.html.layer_times import time_figure
from lamina.report.html.roofline import roofline_figure
from lamina.report.html.training import training_figure
from lamina.report.layers import by_layer
from lamina.report.palette import DARK, LIGHT, PHASES

PLOTLY_FILE = "plotly.min.js"
TALL = 32
"""More layers than this do not fit a screen: their figure scrolls within the page."""
NAMES = {"impl": "implementation", "l2": "L2 cache"}
"""How the axes are called where there is room."""


def write_report(
    path: Path,
    run: Run,
    rows: Sequence[LayerRun],
    roofs: Roofs | None,
    findings: Sequence[Finding],
    rooflines: Mapping[LayerRun, Roofline] | None = None,
    shares: Mapping[LayerRun, float] | None = None,
    epochs: Sequence[Epoch] = (),
    assets: Literal["inline", "dir"] = "inline",
) -> Path:
    """Write the report of a run and return its path.

    ``rooflines`` and ``shares`` are what explaining the rows gave; without them the report leaves out the
    roofline figure, its columns and the shares. ``assets="dir"`` puts the plotting library (4.8 MB) once
    into ``plotly.min.js`` beside the reports of a folder, instead of into each.

    Raises:
        UsageError: ``assets`` is neither of the two.
    """
    if assets not in ("inline", "dir"):
        raise UsageError(f"assets {assets!r}: expected 'inline' or 'dir'")
    rooflines, shares = rooflines or {}, shares or {}
    settings = by_setting(rows)
    drawn = _figures(settings, roofs, rooflines, shares, epochs)
    timed = [row for row in rows if row.timing]
    html = _environment().get_template("report.html.j2").render(
        run=run,
        lamina=__version__,
        facts=list(_facts(run, timed, roofs)),
        started=_date(run.started),
        devices=dict.fromkeys(row.device for row in rows) or [run.environment.get("device", "no device")],
        measured_as=_measured_as(rows),
        totals=[_total(setting, members) for setting, members in settings.items()],
        tall=len({row.layer for row in rows}) > TALL,
        findings=findings,
        figures={"config": CONFIG, "frames": drawn},
        settings=[label(setting) for setting in settings],
        unplaced=sum(not (rooflines.get(row) and rooflines[row].achieved_gflops) for row in timed),
        columns=layer_columns(timed),
        entries=entries(timed, rooflines, shares),
        failed=[row for row in rows if not row.timing],
        epochs=epochs,
        light=LIGHT,
        dark=DARK,
        plotly=get_plotlyjs() if assets == "inline" else None,
        plotly_file=PLOTLY_FILE,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    if assets == "dir":
        path.with_name(PLOTLY_FILE).write_text(get_plotlyjs(), encoding="utf-8")
    path.write_text(html, encoding="utf-8")
    return path


def label(setting: Setting) -> str:
    """A setting as people read it.

    >>> label((("precision", "fp32"), ("batch", "64")))
    'fp32 · batch 64'
    """
    return " · ".join(f"batch {at}" if axis == "batch" else at for axis, at in setting if at is not None)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("lamina.report", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": units.duration,
        "percent": units.percent,
        "number": units.number,
        "key": _key,
    }
    return environment


def _key(value: float | str | None) -> float | str:
    """What a cell sorts by, as an attribute; empty goes last, and so does what is no number."""
    return "" if value is None or (isinstance(value, float) and not isfinite(value)) else value


def _figures(
    settings: Mapping[Setting, Sequence[LayerRun]],
    roofs: Roofs | None,
    rooflines: Mapping[LayerRun, Roofline],
    shares: Mapping[LayerRun, float],
    epochs: Sequence[Epoch],
) -> dict[str, list[Figure | None]]:
    """For each figure one frame per setting, or one for all; figures without any frame are left out."""
    drawn: dict[str, list[Figure | None]] = {
        "time": [time_figure(members, shares) for members in settings.values()],
        "roofline": [
            roofline_figure(members, roofs, rooflines, shares) if roofs else None for members in settings.values()
        ],
        "training": [training_figure(epochs)],
    }
    return {name: frames for name, frames in drawn.items() if any(frames)}


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


def _date(iso: str) -> str:
    """A time stamp to the minute, or as it stands where it is none."""
    try:
        date = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    zone = date.tzname() or ""
    return f"{date:%Y-%m-%d %H:%M} {zone}".strip()


def _facts(run: Run, timed: Sequence[LayerRun], roofs: Roofs | None) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Provenance: what anyone needs to measure this again."""
    yield (
        "Run",
        [
            ("command", run.command),
            ("run", run.id),
            ("status", run.status),
            ("started", run.started),
            ("finished", run.finished or "–"),
            ("samples", _span([row.timing.n for row in timed if row.timing])),
            *(("remark", remark) for remark in run.remarks),
        ],
    )
    yield "Machine and software", list(_flat(run.environment))
    if roofs:
        yield (
            "Measured roofs",
            [
                ("device", roofs.device),
                ("date", roofs.date),
                ("copy", units.bandwidth(roofs.copy_gbs)),
                ("read", units.bandwidth(roofs.read_gbs)),
                *((f"GEMM {precision}", units.rate(gflops)) for precision, gflops in roofs.gemm_gflops.items()),
                ("launch", units.duration(roofs.launch_us)),
            ],
        )
    yield "Configuration", list(_flat(run.config))


def _flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Nested configuration as dotted names; what a machine does not have is left out."""
    for key, at in tree.items():
        if isinstance(at, Mapping):
            yield from _flat(at, f"{above}{key}.")
        elif at is not None:
            text = ", ".join(map(str, at)) if isinstance(at, list | tuple) else str(at)
            yield f"{above}{key}", text


def _span(numbers: Sequence[int]) -> str:
    if not numbers:
        return "–"
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least} to {most}"

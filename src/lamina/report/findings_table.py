"""Terminal tables of what was concluded: findings, and two runs by kernel and by counter."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from lamina.record import Finding
from lamina.report import units
from lamina.report.plain_table import Line, plain_table

CHANGES = {"changed": "yellow", "added": "green", "removed": "red"}
"""How a phase looks whose kernels differ."""


def findings_table(
    findings: Sequence[tuple[Finding, float]], title: str | None = None, more: int = 0, width: int | None = None
) -> Table:
    """Findings, each with the part of the step that it could save; ``more`` is how many were left out."""
    lines = [
        Line(
            [
                finding.layer or "",
                finding.phase or "",
                finding.rule,
                units.percent(saving) if saving else "",
                f"{finding.confidence:.0%}",
                finding.claim,
            ]
        )
        for finding, saving in findings
    ]
    headings = ["layer", "phase", "rule", "potential saving", "confidence", "finding"]
    caption = [f"{more} more findings: --all shows them"] if more else []
    return plain_table(
        headings,
        lines,
        numeric=headings[3:5],
        title=title,
        caption=caption,
        width=width,
        dispensable=("rule", "confidence", "phase", "layer"),
        wrapped="finding",
    )


def kernels_table(
    rows: Sequence[tuple[str, str, str, float, float, Sequence[str], Sequence[str]]],
    a: str,
    b: str,
    title: str | None = None,
    width: int | None = None,
) -> Table:
    """Phases by their kernels: layer, phase, change, both times, the kernels only in ``a`` and only in ``b``."""
    lines = []
    for layer, phase, change, a_us, b_us, gone, new in rows:
        names = [f"- {name}" for name in gone] + [f"+ {name}" for name in new]
        cells = [layer, phase, change, units.duration(a_us), units.duration(b_us), "\n".join(names)]
        lines.append(Line(cells, CHANGES.get(change)))
    tally = [change for _, _, change, *_ in rows]
    caption = [", ".join(f"{tally.count(change)} {change}" for change in dict.fromkeys(tally))] if tally else []
    headings = ["layer", "phase", "kernels", a, b, "difference"]
    return plain_table(headings, lines, numeric=(a, b), title=title, caption=caption, width=width, wrapped="difference")


def counters_table(
    rows: Sequence[tuple[str, str, str, str, float | None, float | None, float | None]],
    a: str,
    b: str,
    title: str | None = None,
    width: int | None = None,
) -> Table:
    """Metrics of two runs: layer, phase, metric, unit, both values and their ratio."""
    lines = [
        Line(
            [
                layer,
                phase,
                metric,
                unit,
                *("" if value is None else units.number(value) for value in (before, after)),
                "" if ratio is None else f"{units.number(ratio)}x",
            ]
        )
        for layer, phase, metric, unit, before, after, ratio in rows
    ]
    headings = ["layer", "phase", "metric", "unit", a, b, "ratio"]
    return plain_table(headings, lines, numeric=(a, b, "ratio"), title=title, width=width, dispensable=("unit",))

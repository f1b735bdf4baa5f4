"""One offline HTML page: published tables and figures beside ours, with verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lamina import __version__
from lamina.report.html import pages
from lamina.report.palette import DARK, LIGHT

WIDTH = 420
"""Width of the longest bar, in units of the drawing."""


def write_reproduced(path: Path, document: Mapping[str, Any], summary: str, tolerance: str) -> Path:
    """Write the page of ``document``, which `Summary.to_dict` makes, and return its path."""
    environment = pages.environment()
    lines = [line | {"rows": [_row(row) for row in line["rows"]]} for line in document["entries"]]
    text = environment.get_template("reproduced.html.j2").render(
        entries=lines,
        charts={line["name"]: bars(line["rows"]) for line in document["entries"]},
        summary=summary,
        tolerance=tolerance,
        lamina=__version__,
        light=LIGHT,
        dark=DARK,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def bars(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A pair of bars for each published value with one of ours; those of one unit share a scale."""
    known = [row for row in rows if row["measured"] is not None and not isinstance(row["published"], str)]
    most: dict[str, float] = {}
    for row in known:
        most[row["unit"]] = max(most.get(row["unit"], 0.0), abs(row["published"]), abs(row["measured"]))
    return [
        {
            "name": f"{row['printed'] or row['layer']}: {row['quantity']}",
            "published": f"{row['published']} {row['unit']}".strip(),
            "ours": f"{row['measured']:.3g} {row['unit']}".strip(),
            "published_width": _width(row["published"], most[row["unit"]]),
            "ours_width": _width(row["measured"], most[row["unit"]]),
        }
        for row in known
    ]


def _width(value: float, most: float) -> float:
    return round(WIDTH * max(value, 0.0) / most, 1) if most else 0.0


def _row(row: Mapping[str, Any]) -> dict[str, str]:
    """A row of the table; those that are bars have no name."""
    chart = row["measured"] is not None and not isinstance(row["published"], str)
    return {
        "name": "" if chart else f"{row['printed'] or row['layer']}: {row['quantity']}",
        "printed": f"{row['published']} {row['unit']}".strip(),
        "ours": row["ours"],
        "verdict": row["verdict"],
    }

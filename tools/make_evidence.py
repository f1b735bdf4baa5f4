"""Pages of docs/evidence from the files in benchmarks/results: numbers in prose come from nowhere else.

Run: python tools/make_evidence.py          rewrites the pages
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, PAGES = ROOT / "benchmarks" / "results", ROOT / "docs" / "evidence"
PHASES = ("forward", "backward_data", "backward_weight", "step")
CLOCKS = (("cupti", "warm"), ("graph", "warm"))
"""The clocks of the table in order of preference, where a file has several."""


def pages() -> dict[Path, str]:
    """Each page's path and text."""
    return {PAGES / f"{path.stem}.md": page(path) for path in sorted(RESULTS.glob("*.json"))}


def page(path: Path) -> str:
    """One results file as a page: where it was born, what it shows, its rows."""
    document = json.loads(path.read_text(encoding="utf-8"))
    birth = document["provenance"]
    lines = [
        f"# {document['claim'].replace('_', ' ')}: {birth['device']}, {birth['date'][:10]}",
        "",
        f"Made by `{birth['command']}` from commit `{birth['commit'][:12]}`; "
        f"torch {birth['versions']['torch']}, driver "
        f"{birth.get('driver', '-')}. Every row is in `benchmarks/results/{path.name}`.",
        "",
        "## Summary",
        "",
        *facts(document.get("summary", {})),
        "",
        "## Layers",
        "",
        *layers(document["rows"]),
        "",
    ]
    return "\n".join(lines)


def facts(summary: Mapping[str, Any]) -> Iterable[str]:
    """The summary as a table; lists stay in the file."""
    yield "| what | value |"
    yield "|---|---|"
    for name, value in summary.items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        shown = ", ".join(f"{key} {part}".strip() for key, part in parts if not isinstance(part, list))
        yield f"| {name} | {shown} |"


def layers(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Medians in microseconds, a line for each layer and phase, a column for each precision and implementation."""
    clocks = {(row["timing"], row["l2"]) for row in rows}
    clock = next(wanted for wanted in (*CLOCKS, *sorted(clocks)) if wanted in clocks)
    mine = [row for row in rows if (row["timing"], row["l2"], row.get("by", "lamina")) == (*clock, "lamina")]
    mine.sort(key=lambda row: row.get("place", 0))
    columns = list(dict.fromkeys((row["precision"], row["layout"], row["impl"]) for row in mine))
    places = list(dict.fromkeys(row["layer"] for row in mine))
    axes = ("layer", "phase", "precision", "layout", "impl")
    time = {tuple(row[axis] for axis in axes): row["median_us"] for row in mine}
    yield f"Median microseconds by the {clock[0]} clock, L2 {clock[1]}."
    yield ""
    yield "| layer | phase | " + " | ".join(" ".join(column) for column in columns) + " |"
    yield "|---|---|" + "--:|" * len(columns)
    for layer in places:
        for phase in PHASES:
            values = [time.get((layer, phase, *column)) for column in columns]
            if any(value is not None for value in values):
                cells = " | ".join("-" if value is None else f"{value:.1f}" for value in values)
                yield f"| {layer} | {phase} | {cells} |"


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for file, text in pages().items():
        file.write_text(text, encoding="utf-8")

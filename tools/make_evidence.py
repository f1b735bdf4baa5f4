"""Pages of docs/evidence from the files in benchmarks/results: numbers in prose come from nowhere else.

Run: python tools/make_evidence.py          rewrites the pages
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, PAGES = ROOT / "benchmarks" / "results", ROOT / "docs" / "evidence"
PHASES = ("forward", "backward_data", "backward_weight", "step", "end_to_end")
CLOCKS = (("cupti", "warm"), ("graph", "warm"))
"""The clocks of the table in order of preference, where a file has several."""
DO_BENCH = "triton.testing.do_bench"
"""The independent clock, which tables leave out."""


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
        *table(document["rows"]),
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


def table(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Changes or simulated gains where the file holds them, layers otherwise."""
    if not rows:
        return []
    if any("change" in row for row in rows):
        return ["## Changes", "", *changes(rows)]
    if any("entry" in row for row in rows):
        return ["## Points", "", *points(rows)]
    if any("sram_bytes" in row for row in rows):
        return ["## Designs", "", *designs(rows)]
    if any("roofline_bound" in row for row in rows):
        return ["## Layers", "", *gains(rows)]
    return ["## Layers", "", *layers(rows)]


FACTORS = ("kernel", "smaller_L2", "prefetch", "narrower_operands", "fewer_lines", "skipped_multiplications")


def gains(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Simulated speed-ups over dense beside their bounds, and the factors they are made of where those are known."""
    names = ["density of B", "speed-up", "1/density", "roofline", *(name.replace("_", " ") for name in FACTORS)]
    yield "| network | layer | device | weights by | searches | " + " | ".join(names) + " |"
    yield "|---|---|---|---|--:|" + "--:|" * len(names)
    for row in rows:
        if row["impl"] == "engine":
            values = [row["speedup"], row["mac_skip_bound"], row["roofline_bound"], *map(row.get, FACTORS)]
            cells = [
                row["workload"],
                f"{row['layer']} x{row['occurs']}",
                row["device"],
                row["weights"],
                str(row["searchers"]),
            ]
            cells.append("-" if row["density"] is None else f"{row['density']:.1%}")
            cells += ["-" if value is None else f"{value:.2f}x" for value in values]
            yield "| " + " | ".join(cells) + " |"


POINT = {
    "speedup": ("speed-up", "{:.2f}x"),
    "l2_transactions": ("L2 transactions", "{:.2f}x"),
    "l2_hit_rate": ("L2 hit rate", "{:.1%}"),
    "baseline_l2_hit_rate": ("dense hit rate", "{:.1%}"),
    "read_latency": ("read latency", "{:.2f}x"),
}


def points(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """What was simulated for each point of a figure, beside its dense baseline; a point of several figures once."""
    yield "Beside the dense kernel on the whole L2."
    yield ""
    yield "| network | layer | batch | density | zeros | " + " | ".join(name for name, _ in POINT.values()) + " |"
    yield "|---|---|--:|--:|---|" + "--:|" * len(POINT)
    lines = []
    for row in rows:
        if row["impl"] == "engine":
            values = [shown.format(row[key]) if row[key] is not None else "-" for key, (_, shown) in POINT.items()]
            cells = [row["workload"], row["layer"], str(row["batch"]), f"{row['density']:.0%}", row["pattern"]]
            lines.append("| " + " | ".join([*cells, *values]) + " |")
    yield from dict.fromkeys(lines)


def designs(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Every design of a sweep, the fastest first; those of the front are marked."""
    names = list(rows[0]["settings"])
    yield "| " + " | ".join(names) + " | speed-up | KB of SRAM added | front |"
    yield "|" + "--:|" * (len(names) + 2) + "---|"
    for row in sorted(rows, key=lambda row: -row["speedup"]):
        cells = [str(row["settings"][name]) for name in names]
        cells += [f"{row['speedup']:.3f}x", f"{row['sram_bytes'] / 1024:g}", "yes" if row["front"] else ""]
        yield "| " + " | ".join(cells) + " |"


def changes(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """What-ifs, the whole step first: the time before each and after it, and the gain predicted and measured."""
    yield "Microseconds; what the file holds of each layer and phase alone is left out where it was predicted well."
    yield ""
    yield "| change | what | layer | phase | before | after | measured | predicted | missed by |"
    yield "|---|---|---|---|--:|--:|--:|--:|---|"
    pairs = [(before, after) for before, after in pairwise(rows) if before["impl"] == "dense" != after["impl"]]
    network = rows[0]["workload"]
    for before, after in sorted(pairs, key=lambda pair: pair[1]["layer"] != network):
        if after["layer"] == network or after["miss"] or after["change"] in ("fusion", "l1_bypass"):
            cells = [after[key] for key in ("change", "detail", "layer", "phase")]
            times = [f"{row['median_us']:.1f}" for row in (before, after)]
            gains = [after["measured_gain"], after["predicted_gain"]]
            shown = ["-" if gain is None else f"{gain:+.1%}" for gain in gains]
            yield f"| {' | '.join([*cells, *times, *shown, after['miss'] or 'held'])} |"


def layers(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Medians in microseconds, a line for each layer and phase, a column for each precision and implementation."""
    clocks = {(row["timing"], row["l2"]) for row in rows}
    clock = next(wanted for wanted in (*CLOCKS, *sorted(clocks)) if wanted in clocks)
    mine = [row for row in rows if (row["timing"], row["l2"]) == clock and row.get("by") != DO_BENCH]
    mine.sort(key=lambda row: row.get("place", 0))
    columns = list(dict.fromkeys((row["precision"], row["layout"], row["impl"]) for row in mine))
    several = {a["layer"] for a, b in pairwise(mine) if a["layer"] == b["layer"] and a.get("batch") != b.get("batch")}
    named = [f"{row['layer']}, batch {row['batch']}" if row["layer"] in several else row["layer"] for row in mine]
    places = list(dict.fromkeys(named))
    axes = ("phase", "precision", "layout", "impl")
    time = {(name, *(row[axis] for axis in axes)): row["median_us"] for name, row in zip(named, mine, strict=True)}
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

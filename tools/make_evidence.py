"""Pages of docs/evidence from the files in benchmarks/results.

Run: python tools/make_evidence.py          rewrites the pages
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, PAGES = ROOT / "benchmarks" / "results", ROOT / "docs" / "evidence"
PHASES = ("forward", "backward_data", "backward_weight", "step", "end_to_end")
PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16")
BASELINES = ("dense", "library")
CLOCKS = (("cupti", "warm"), ("graph", "warm"))
"""The clocks of the table in order of preference, where a file has several."""
DO_BENCH = "triton.testing.do_bench"
"""The independent clock, which tables leave out."""
SPLITS = ("workload", "batch", "device", "memory", "sampled")
"""Columns in which two timings of one layer and implementation may differ."""
ENDINGS = {"ok": "✓", "refused": "refused", "traceback": "**traceback**", "timeout": "**timeout**"}
"""How a cell of the gauntlet ended, in its matrix."""
WIDE = 40
"""A table whose column names have more letters than this may be transposed."""
MAX_COLUMNS = 6
"""A table with more columns becomes one for each precision, and one for each part that was timed."""


def pages() -> dict[Path, str]:
    """Each page's path and text."""
    return {PAGES / f"{path.stem}.md": page(path) for path in sorted(RESULTS.glob("*.json"))}


def page(path: Path) -> str:
    """One results file as a page: provenance, summary, rows."""
    document = json.loads(path.read_text(encoding="utf-8"))
    provenance = document["provenance"]
    lines = [
        f"# {document['claim'].replace('_', ' ')}: {provenance['device']}, {provenance['date'][:10]}",
        "",
        f"Made by `{provenance['command']}` from commit `{provenance['commit'][:12]}`; "
        f"torch {provenance['versions']['torch']}, driver "
        f"{provenance.get('driver', '-')}. Every row is in `benchmarks/results/{path.name}`.",
        "",
        "## Summary",
        "",
        *facts(document.get("summary", {})),
        *table(document["rows"]),
    ]
    return "\n".join(lines)


def facts(summary: Mapping[str, Any]) -> Iterable[str]:
    """The summary: plain values in one table, then a table for each group of nested ones; lists stay in the file."""
    yield from grid({name: {"value": value} for name, value in cells(summary).items()})
    last = ""
    for title, rows in groups(summary):
        yield from [f"### {title[0].upper()}{title[1:]}", ""] if title and title != last else []
        yield from grid(rows)
        last = title


def groups(nested: Mapping[str, Any], above: str = "") -> list[tuple[str, dict[str, dict[str, str]]]]:
    """Tables of the nested values: rows called `title: row`, or with mostly the same columns, stand together."""
    tables: list[tuple[str, dict[str, dict[str, str]]]] = []
    for name, value in nested.items():
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            tables.append((spaced(name), {str(at): cells(item) for at, item in enumerate(value, 1)}))
        elif isinstance(value, dict) and value and all(isinstance(item, dict) for item in value.values()):
            tables += groups(value, spaced(name))
        elif isinstance(value, dict) and (row := cells(value)):
            title, _, label = name.rpartition(": ") if ": " in name else (above, "", name)
            of_its_kind = [rows for other, rows in tables if other == title and alike(row, rows)]
            if of_its_kind and (title or tables[-1][1] is of_its_kind[-1]):
                of_its_kind[-1][label] = row
            else:
                tables.append((title, {label: row}))
    return [alone(*table) for table in tables]


def alike(row: Mapping[str, str], rows: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether half of a row's columns, or its only one, belong in this table."""
    return len(row) == 1 or 2 * len(row.keys() & {column for other in rows.values() for column in other}) >= len(row)


def alone(title: str, rows: dict[str, dict[str, str]]) -> tuple[str, dict[str, dict[str, str]]]:
    """A group of one row transposed, by precision where its columns all end in one: `{"fc fp32": ...}` is fc's row.

    Rows of one cell each, with several names, say which in a column of its own.
    """
    columns = [column for row in rows.values() for column in row]
    if len(rows) > 1:
        if len(columns) == len(rows) and len(set(columns)) > 1:
            rows = {label: {"which": name, "value": row[name]} for label, row in rows.items() for name in row}
        return title, rows
    ((name, row),) = rows.items()
    transposed: dict[str, dict[str, str]] = {}
    pairs = [column.rpartition(" ") for column in columns]
    if not all(start and end in PRECISIONS for start, _, end in pairs):
        pairs = [(column, "", "value") for column in columns]
    for (where, _, under), column in zip(pairs, columns, strict=True):
        transposed.setdefault(where, {})[under] = row[column]
    return ": ".join(filter(None, (title, spaced(name)))), transposed


def cells(values: Mapping[str, Any]) -> dict[str, str]:
    """Plain values by name, as text."""
    plain = {name: value for name, value in values.items() if not isinstance(value, dict | list)}
    return {spaced(name).rstrip(":"): shown(value) for name, value in plain.items()}


def spaced(name: str) -> str:
    """A name in the file as words."""
    name = name.replace("speed-up", "speedup")  # as results files of version 0.1 spell it
    return name if " " in name or "[" in name else name.replace("_", " ")


def shown(value: object) -> str:
    """A value of the summary in at most four digits."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def grid(rows: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    """Named cells as a table and a blank line; a wide one is transposed where its rows' names are shorter."""
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    same = shared([*rows]) | shared(columns)
    short = {name: brief(name, same) for name in (*rows, *columns)}
    width = sum(len(short[name]) for name in columns)
    if width > max(WIDE, sum(len(short[name]) for name in rows)):
        columns, rows = [*rows], {name: {row: rows[row][name] for row in rows if name in rows[row]} for name in columns}
    if rows:
        yield from [f"All with {', '.join(sorted(same))}.", ""] if same else []
        yield "|  | " + " | ".join(short[name] for name in columns) + " |"
        text = [any(row.get(name, "-")[0].isalpha() for row in rows.values()) for name in columns]
        yield "|---|" + "".join("---|" if left else "--:|" for left in text)
        for name, row in rows.items():
            yield f"| {short[name]} | " + " | ".join(row.get(column, "-") for column in columns) + " |"
        yield ""


def settings(name: str) -> list[str]:
    """The settings in brackets of an implementation's name."""
    return name.partition("[")[2].partition("]")[0].split(",") if "[" in name else []


def shared(names: Sequence[str]) -> set[str]:
    """The settings that all those of these implementations have that have any, if names differ without them too."""
    found = [set(settings(name)) for name in names if "[" in name]
    same = set.intersection(*found) if len(found) > 1 else set()
    return same if len({brief(name, same) for name in names}) == len({*names}) else set()


def brief(name: str, left_out: Collection[str]) -> str:
    """A name without the settings that its whole table shares."""
    head, bracket, rest = name.partition("[")
    kept = ",".join(setting for setting in settings(name) if setting not in left_out)
    return head + (f"[{kept}]" if kept else "") + rest.partition("]")[2] if bracket else name


def table(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Changes or simulated gains where the file holds them, layers otherwise."""
    if not rows:
        return []
    if any("cells" in row for row in rows):
        return ["## Networks by verb", "", *matrix(rows)]
    if any("dense_us" in row for row in rows):
        return ["## Whole steps", "", *selected(rows, "end_to_end"), "", "## Layers", "", *selected(rows, "step"), ""]
    if any("l1" in row or "phases_with_counters" in row for row in rows):
        return characterized(rows)
    if any("change" in row for row in rows):
        return ["## Changes", "", *changes(rows), ""]
    if any("entry" in row for row in rows):
        return ["## Points", "", *points(rows), ""]
    if any("sram_bytes" in row for row in rows):
        return ["## Designs", "", *designs(rows), ""]
    if any("test_accuracy" in row for row in rows):
        return []  # what counts is in the summary: runs shared the device, so their times are no claim
    if any("roofline_bound" in row for row in rows):
        return ["## Layers", "", *gains(rows), ""]
    return ["## Layers", "", *layers(rows)]


def matrix(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """How each verb ended on each network, a table for each source; then every reason, with the cells that have it."""
    verbs = list(dict.fromkeys(verb for row in rows for verb in row["cells"]))
    for source in dict.fromkeys(row["source"] for row in rows):
        yield from [f"### {source}", "", f"|  | {' | '.join(verbs)} |", f"|---|{':-:|' * len(verbs)}"]
        for row in rows:
            if row["source"] == source:
                signs = (ENDINGS[row["cells"][verb]] if verb in row["cells"] else "-" for verb in verbs)
                yield f"| {row['workload']} | {' | '.join(signs)} |"
        yield ""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for verb, reason in row["reasons"].items():
            reasons.setdefault((row["workload"], reason), []).append(verb)
    yield from ["## Reasons", "", "|  | verbs | reason |", "|---|---|---|"]
    for (workload, reason), of in reasons.items():
        yield f"| {workload} | {', '.join(of)} | {reason.replace('|', '/')} |"
    yield ""


def selected(rows: Sequence[Mapping[str, Any]], phase: str) -> Iterable[str]:
    """What was selected for each layer, or whole network, in each precision and mode, and its speedup over dense."""
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    yield "Dense over selected, interleaved after the selection; *dense* where the layer keeps its module."
    yield ""
    yield "| network | layer | precision | " + " | ".join(f"{mode}: selected | speedup" for mode in modes) + " |"
    yield "|---|---|---|" + "---|--:|" * len(modes)
    lines: dict[tuple[str, str, str], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if row["phase"] == phase:
            lines.setdefault((row["workload"], row["layer"], row["precision"]), {})[row["mode"]] = row
    for key, found in lines.items():
        cells = []
        for mode in modes:
            row = found.get(mode)
            impl = "-" if row is None else brief(row["executed_impl"], {"rescale=true", "signs=true"})
            cells += [impl, "-" if row is None or impl == "dense" else f"{row['speedup']:.2f}x"]
        yield "| " + " | ".join([*key, *cells]) + " |"


BESIDE = {
    "speedup": "speedup", "speedup_bound": "bound",
    "ideal_mac_skip": "ideal: 1/density", "mac_skip_bound": "ideal: 1/density",
    "ideal_roofline": "ideal: roofline", "roofline_bound": "ideal: roofline",
}  # fmt: skip
"""Ratios of a simulated layer and their headings; older files call those of ideal kernels bounds."""
FACTORS = ("kernel", "smaller_L2", "prefetch", "narrower_operands", "fewer_lines", "skipped_multiplications")


def gains(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Simulated speedups over dense beside their bound and those of ideal kernels, and the factors they are made of."""
    mine = [row for row in rows if row["impl"] == "engine"]
    yield from speedups(mine, {name: title for name, title in BESIDE.items() if any(name in row for row in mine)})
    if factored := [row for row in mine if any(row.get(name) is not None for name in FACTORS)]:
        yield from ["", "### What the speedups are made of", ""]
        yield from speedups(factored, {"speedup": "speedup", **{name: name.replace("_", " ") for name in FACTORS}})


def speedups(rows: Sequence[Mapping[str, Any]], shown: Mapping[str, str]) -> Iterable[str]:
    """A simulated layer a line, with what it was simulated on and these ratios."""
    yield "| network | layer | device | weights by | searches | density of B | " + " | ".join(shown.values()) + " |"
    yield "|---|---|---|---|--:|--:|" + "--:|" * len(shown)
    for row in rows:
        cells = [row["workload"], f"{row['layer']} x{row['occurs']}", row["device"], row["weights"]]
        cells += [str(row["searchers"]), "-" if row["density"] is None else f"{row['density']:.1%}"]
        cells += ["-" if row.get(name) is None else f"{row[name]:.2f}x" for name in shown]
        yield "| " + " | ".join(cells) + " |"


POINT = {
    "speedup": ("speedup", "{:.2f}x"),
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
            density, zeros = row["density"], row["pattern"]
            if row.get("masks"):  # the density of what the layer reads, padding included
                density, zeros = row["matrix_density"], f"{zeros}, iteration {row['iteration']}"
            cells = [row["workload"], row["layer"], str(row["batch"]), f"{density:.0%}", zeros]
            lines.append("| " + " | ".join([*cells, *values]) + " |")
    yield from dict.fromkeys(lines)


def designs(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Every design of a sweep, the fastest first; those of the front are marked."""
    names = list(rows[0]["settings"])
    yield "| " + " | ".join(names) + " | speedup | KB of SRAM added | front |"
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


def characterized(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Whole steps of profiles with their counters and energy, and convolutions with L1 on and off."""
    wholes = [row for row in rows if "phases_with_counters" in row]
    if wholes:
        yield from ["## Whole steps", "", "Joules of a step, and of its phases repeated alone.", ""]
        yield "| network | batch | step, us | kernels | phases | with counters | step, J | phases, J |"
        yield "|---|--:|--:|--:|--:|--:|--:|--:|"
        for row in wholes:
            joules = [f"{row[key]:.2f}" if row[key] is not None else "-" for key in ("energy_j", "energy_of_phases_j")]
            counts = [str(row[key]) for key in ("kernels", "phases", "phases_with_counters")]
            cells = [row["workload"], str(row["batch"]), f"{row['median_us']:,.1f}", *counts, *joules]
            yield f"| {' | '.join(cells)} |"
        yield ""
    switched = [row for row in rows if "l1" in row]
    if switched:
        yield from ["## L1 on and off", "", "Microseconds, loads through L1 (on) and past it (off).", ""]
        yield "| layer | phase | on | off | gain | hit rate on | hit rate off |"
        yield "|---|---|--:|--:|--:|--:|--:|"
        for on, off in zip(switched[::2], switched[1::2], strict=True):
            gain = 1 - off["median_us"] / on["median_us"]
            rates = [(row.get("counters") or {}).get("l1tex__t_sector_hit_rate.pct") for row in (on, off)]
            shown = ["-" if rate is None else f"{rate:.1f}%" for rate in rates]
            times = [f"{row['median_us']:,.1f}" for row in (on, off)]
            yield f"| {' | '.join([on['layer'], on['phase'], *times, f'{gain:+.1%}', *shown])} |"
        yield ""


def layers(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Median times by one clock, and in brackets the speedup over the fastest dense layout of the same precision."""
    clocks = {(row["timing"], row["l2"]) for row in rows}
    clock = next(wanted for wanted in (*CLOCKS, *sorted(clocks, key=str)) if wanted in clocks)
    mine = [row for row in rows if (row["timing"], row["l2"]) == clock and row.get("by") != DO_BENCH]
    mine.sort(key=lambda row: row.get("place", 0))
    unit, scale = ("milliseconds", 1000) if min(row["median_us"] for row in mine) >= 1e4 else ("microseconds", 1)
    columns_of = [axis for axis in ("precision", "layout") if len({row[axis] for row in mine}) > 1]
    split = len({(row["precision"], row["layout"], row["impl"]) for row in mine}) > MAX_COLUMNS
    timed = [(row.get("what"), name, row["precision"]) for name, row in zip(labels(mine), mine, strict=True)]
    dense: dict[tuple[Any, ...], float] = {}
    for key, row in zip(timed, mine, strict=True):
        if row["impl"] in BASELINES:
            dense[key] = min(row["median_us"], dense.get(key, math.inf))
    tables: dict[str, dict[str, dict[str, str]]] = {}
    compared = False
    for key, row in zip(timed, mine, strict=True):
        in_title = [row.get("what"), row["precision"] if split and "precision" in columns_of else None]
        column = " ".join([*(row[axis] for axis in columns_of if row[axis] not in in_title), row["impl"]])
        cell = f"{row['median_us'] / scale:,.1f}"
        if key in dense and row["impl"] not in BASELINES:
            cell += f" ({dense[key] / row['median_us']:.2f}x)"
            compared = True
        line = tables.setdefault(", ".join(filter(None, in_title)), {}).setdefault(key[1], {})
        line[column] = f"{line[column]} / {cell}" if column in line else cell
    yield f"Median {unit} by the {clock[0]} clock{f', L2 {clock[1]}' if clock[1] else ''}" + (
        "; in brackets the speedup over the best dense time of the same precision." if compared else "."
    )
    yield ""
    for title, lines in tables.items():
        yield from [f"### {title}", ""] if title else []
        yield from grid(lines)


def labels(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each row timed: its layer, its phase if there are several, and what tells it from others of that layer."""
    values: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for axis in SPLITS:
            values.setdefault((row["layer"], axis), set()).add(mark(row, axis))
    phased = len({row["phase"] for row in rows}) > 1
    names = []
    for row in rows:
        layer = row["layer"].removesuffix(f" {row.get('what')}")
        workload, *others = [mark(row, axis) if len(values[row["layer"], axis]) > 1 else "" for axis in SPLITS]
        name = ": ".join(filter(None, [workload, f"{layer} {row['phase']}" if phased else layer]))
        names.append(", ".join(filter(None, [name, *others])))
    return names


def mark(row: Mapping[str, Any], axis: str) -> str:
    """What a row's label says of one axis."""
    value = row.get(axis)
    if isinstance(value, bool):
        return axis if value else ""
    return value if isinstance(value, str) else f"{axis} {value}" if isinstance(value, int) else ""


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for file, text in pages().items():
        file.write_text(text, encoding="utf-8")

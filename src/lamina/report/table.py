"""Tables for the terminal, each for a ``width`` in characters (all columns without one)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from lamina.record import Epoch, LayerRun, Roofline, Run
from lamina.record.beside import Beside
from lamina.record.comparison import Comparison
from lamina.record.noise import disturbed
from lamina.report import units
from lamina.report.columns import WHOLE, entries, layer_columns
from lamina.report.folding import LONG, SLOWEST, Short, shorten
from lamina.report.plain_table import Line, plain_table, reasons
from lamina.spec import Phase, ResolvedLayer, show

ALARM, WARNING = "bold red", "yellow"
STYLES = {
    "failed": ALARM,
    "skipped": WARNING,
    "interrupted": WARNING,
    "running": "cyan",
    "faster": "green",
    "slower": "red",
    "unmatched": WARNING,
    "unclear": WARNING,
}
"""By outcome, status or verdict."""
DISPENSABLE = (
    *("note", "kind", "quartiles", "executed", "error", "each (range)"),
    *("GB/s", "GFLOP/s", "share", "of roofline"),
)
"""Columns of a layer table that a narrow terminal does without, the first ones first."""
REASONS = 6
"""Reasons below a short table."""


def layer_table(
    rows: Sequence[LayerRun],
    rooflines: Mapping[LayerRun, Roofline] | None = None,
    shares: Mapping[LayerRun, float] | None = None,
    title: str | None = None,
    width: int | None = None,
    brief: bool = False,
) -> Table:
    """One line per phase of each layer; below it the time of all together and why some have none.

    With ``brief``, a table of ``LONG`` or more rows folds equal blocks and shows the slowest lines; its last line says
    how many rows are folded and hidden.
    """
    every = entries(rows, rooflines or {}, shares or {})
    short = shorten(every) if brief and len(rows) >= LONG else None
    lines = short.lines if short else every
    columns = layer_columns(rows, lines=lines)
    timed = [row.timing.median_us for row in rows if row.timing and row.phase != "step"]
    phases = "1 phase" if len(timed) == 1 else f"{len(timed)} phases"
    caption = [f"{phases}, {units.duration(sum(timed))} together"] if timed else []
    why = reasons((f"{row.layer} {row.phase}", f"{row.outcome}: {row.reason}") for row in rows if not row.timing)
    why += reasons((f"{row.layer} {row.phase}", _ran_dense(row)) for row in rows if row.timing and row.fell_back)
    caption += why if short is None else fewer_reasons(why)
    if noise := disturbed(rows):
        caption.append(noise)
    if short:
        caption.append(_shortened(short, len(rows)))
    return plain_table(
        [column.title for column in columns],
        [
            Line([column.text(entry) for column in columns], STYLES.get(entry.row.outcome, _noise(entry.row)))
            for entry in lines
        ],
        numeric={column.title for column in columns if column.numeric},
        title=title,
        caption=caption,
        width=width,
        dispensable=DISPENSABLE,
    )


def fewer_reasons(why: Sequence[str]) -> list[str]:
    """The reasons below a short table: the first ones, and how many others there are."""
    more = len(why) - REASONS
    return [*why[:REASONS], *([f"... and {more} other reasons"] if more > 0 else [])]


def _shortened(short: Short, rows: int) -> str:
    """How many rows a short table folds and hides, and how to see them."""
    folded = f"{short.folded} are folded into blocks of equal layers" if short.folded else ""
    hidden = f"{short.hidden} faster ones are hidden" if short.hidden else ""
    return f"of {rows} rows, {' and '.join(filter(None, (folded, hidden)))}: --all shows every row"


def _noise(row: LayerRun) -> str | None:
    return WARNING if row.note else None


def _ran_dense(row: LayerRun) -> str:
    return f"{row.impl} ran {row.executed_impl}: {row.selection_reason}".removesuffix(": ")


def network_table(
    resolved: Sequence[ResolvedLayer], itemsize: int = 4, title: str | None = None, width: int | None = None
) -> Table:
    """What a network would compute and move, phase by phase, with elements of ``itemsize`` bytes."""
    costs = [{phase: layer.cost(phase, itemsize) for phase in layer.phases} for layer in resolved]
    lines, uncounted = [], 0
    for layer, of in zip(resolved, costs, strict=True):
        cells = [layer.name, layer.layer.kind, ", ".join(map(show, layer.inputs)), show(layer.output)]
        cells.append(units.count(layer.parameters) if layer.parameters else "")
        known = layer.layer.counted
        cells += [_cost(of[phase].flops if known else None, of[phase].bytes) if phase in of else "" for phase in Phase]
        uncounted += bool(of) and not known
        lines.append(Line(cells))
    total = ["total", "", "", "", units.count(sum(layer.parameters for layer in resolved))]
    for phase in Phase:
        members = [of[phase] for of in costs if phase in of]
        cost = _cost(sum(cost.flops for cost in members), sum(cost.bytes for cost in members))
        total.append(f">= {cost}" if uncounted else cost)
    return plain_table(
        ["layer", "type", "input", "output", "parameters", *Phase],
        lines,
        numeric={"parameters", *Phase},
        title=title,
        caption=[
            f"FLOP / compulsory bytes of each phase, {itemsize} bytes an element",
            *([f"{uncounted} layers have no formula for their FLOPs"] if uncounted else []),
        ],
        footer=total,
        width=width,
        dispensable=("input", "type", "output", "parameters"),
    )


def runs_table(runs: Iterable[Run], title: str | None = None, width: int | None = None) -> Table:
    """The runs of a database, one line each."""
    return plain_table(
        ["run", "verb", "target", "device", "started", "status"],
        [
            Line(
                [
                    run.id,
                    run.verb,
                    run.target,
                    str(run.environment.get("device", "")),
                    run.started,
                    run.status,
                ],
                STYLES.get(run.status),
            )
            for run in runs
        ],
        title=title,
        width=width,
        dispensable=("device", "started"),
        wrapped="target",
    )


def diff_table(
    comparisons: Sequence[Comparison],
    a: str = "first",
    b: str = "second",
    title: str | None = None,
    width: int | None = None,
    brief: bool = False,
) -> Table:
    """Two runs side by side; ``a`` and ``b`` are what their columns are called.

    With ``brief``, a table of ``LONG`` or more pairs shows those with the largest difference of their times.
    """
    short = brief and len(comparisons) >= LONG
    verdicts = [it.verdict for it in comparisons]
    tally = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    sides = {_sides(it) for it in comparisons} - {""}
    measured = f" ({next(iter(sides))})" if len(sides) == 1 else ""
    caption = [f"{b} against {a}{measured}: {tally}"] if tally else []
    why = reasons((f"{it.layer} {it.phase}", it.reason) for it in comparisons if it.reason)
    caption += fewer_reasons(why) if short else why
    shown = _most_different(comparisons) if short else comparisons
    if short:
        hidden = len(comparisons) - len(shown)
        caption.append(f"of {len(comparisons)} pairs, {hidden} of smaller difference are hidden: --all shows all")
    mixed = ["measured as"] if len(sides) > 1 else []
    lines = []
    for it in shown:
        speedup = "" if it.speedup is None else f"{units.number(it.speedup)}x"
        cells = [it.layer, it.phase, _time(it.a), _time(it.b), speedup, it.verdict]
        lines.append(Line([*cells, *([_sides(it)] if mixed else [])], STYLES.get(it.verdict)))
    return plain_table(
        ["layer", "phase", a, b, "speedup", "verdict", *mixed],
        lines,
        numeric={a, b, "speedup"},
        title=title,
        caption=caption,
        width=width,
        dispensable=("verdict",),
    )


def _most_different(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The whole steps, then the pairs whose times differ most."""

    def difference(it: Comparison) -> float:
        both = [row.timing.median_us for row in (it.a, it.b) if row and row.timing]
        return abs(both[0] - both[1]) if len(both) > 1 else 0.0

    layers = sorted((it for it in comparisons if it.phase != WHOLE), key=difference, reverse=True)
    return [*(it for it in comparisons if it.phase == WHOLE), *layers[:SLOWEST]]


def epochs_table(epochs: Iterable[Epoch], title: str | None = None, width: int | None = None) -> Table:
    """Progress of a training run."""
    headings = ["epoch", "step", "rate", "train loss", "train acc.", "test loss", "test acc.", "time"]
    lines = [
        Line(
            [
                str(it.epoch),
                f"{it.step:,}",
                units.number(it.learning_rate),
                f"{it.train_loss:.4f}",
                f"{it.train_accuracy:.2%}",
                f"{it.test_loss:.4f}",
                f"{it.test_accuracy:.2%}",
                units.duration(it.seconds * 1e6),
            ]
        )
        for it in epochs
    ]
    dispensable = ("step", "rate", "train acc.", "train loss")
    return plain_table(headings, lines, numeric=set(headings), title=title, width=width, dispensable=dispensable)


def published_table(
    values: Iterable[Beside], title: str | None = None, note: str = "", width: int | None = None
) -> Table:
    """What a paper states beside ours; ``note`` is about all of it."""
    lines = []
    for it in values:
        verdict = "yes" if it.agrees else "-" if it.agrees is None else "disputed" if it.value.disputed else "no"
        cells = [it.value.printed or it.value.layer, it.value.quantity, f"{it.value.value} {it.value.unit}".strip()]
        lines.append(Line([*cells, it.ours, verdict, it.value.note], WARNING if verdict != "yes" else None))
    headings = ["layer", "quantity", "published", "ours", "agrees", "note"]
    caption = [note] if note else []
    return plain_table(
        headings, lines, numeric=headings[2:4], title=title, caption=caption, width=width, wrapped="note"
    )


def verdict_table(lines: Iterable[Mapping[str, Any]], title: str | None = None, width: int | None = None) -> Table:
    """Entries of papers, one line each, with the ratio of ours to the published values and the verdict."""
    cells = [
        Line(
            [
                *(line[name] for name in ("name", "published", "measured")),
                "" if line["ratio"] is None else f"{line['ratio']:.2f}",
                f"{line['verdict']}{': ' * bool(line['why'])}{line['why']}",
                line["source"].partition(",")[0],
            ],
            WARNING if line["verdict"].startswith("not ") else None,
        )
        for line in lines
    ]
    headings = ["name", "published", "ours", "ratio", "verdict", "ours is"]
    return plain_table(
        headings, cells, numeric=["ratio"], title=title, width=width, wrapped="verdict", dispensable=["ours is"]
    )


def memory_table(
    chunks: Iterable[tuple[int, Sequence[str]]], title: str | None = None, width: int | None = None
) -> Table:
    """Each chunk of the arena with the tensors it holds one after the other."""
    lines = [Line([str(number), units.size(nbytes), ", ".join(names)]) for number, (nbytes, names) in enumerate(chunks)]
    headings = ["chunk", "size", "holds, one after the other"]
    return plain_table(headings, lines, numeric=headings[:2], title=title, width=width, wrapped=headings[2])


def validation_table(document: Mapping[str, Any], width: int | None = None) -> Table:
    """A simulator beside measured runs, row by row; ``document`` is a validation's ``to_dict()``."""
    lines = []
    for row in document["rows"]:
        broken = [one for one in row["identities"] if not one["held"]]
        names = ", ".join(f"{one['name']} {one['simulated']} for {one['reference']}" for one in broken)
        size = f"{row['m']}x{row['n']}x{row['k']}"
        times = [units.duration(row["simulated_us"]), units.duration(row["reference_us"]), f"{row['error']:+.1%}"]
        cells = [
            row["tag"],
            row["role"],
            size,
            str(row["cus"]),
            str(row["l2_kb"]),
            row["dram"],
            *times,
            names or "all held",
        ]
        lines.append(Line(cells, ALARM if broken else None))
    headings = ["run", "role", "MxNxK", "CUs", "L2 KiB", "DRAM", "simulated", "measured", "error", "identities"]
    caption = [f"error of time: mean {document['mean_error']:.1%}, worst {document['worst_error']:.1%}"]
    if document["hold_out"]:
        mean, worst = document["hold_out_mean_error"], document["hold_out_worst_error"]
        caption.append(f"{document['hold_out']} hold-outs: mean {mean:.1%}, worst {worst:.1%}")
    return plain_table(headings, lines, numeric=headings[3:9], caption=caption, width=width, wrapped="identities")


def _cost(flops: int | None, moved: int) -> str:
    return f"{'-' if flops is None else units.count(flops)} / {units.size(moved)}"


def _time(row: LayerRun | None) -> str:
    if row is None:
        return ""
    return units.duration(row.timing.median_us) if row.timing else row.outcome


def _sides(comparison: Comparison) -> str:
    """How the two sides were measured: the precision always, and whatever else differs."""
    if comparison.a is None or comparison.b is None:
        return ""
    precision = {} if "precision" in comparison.differs else {"precision": comparison.a.precision}
    differing = {axis: f"{x} → {y}" for axis, (x, y) in comparison.differs.items()}
    return ", ".join([*precision.values(), *differing.values()])

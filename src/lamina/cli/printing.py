"""What commands print on stdout: tables for people, JSON and CSV for programs."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from lamina.pipeline import Reproduced
    from lamina.record import LayerRun, Run
    from lamina.spec import ResolvedLayer
    from lamina.store import Store

WIDE = 1 << 20
"""Characters of a line in a file or a pipe: more than any table has."""


def show(*tables: Table) -> None:
    """Print tables to fit the terminal. In a file or a pipe, nothing is cut, and no line ends in blanks."""
    terminal = width()
    console = Console(width=terminal or WIDE)
    for one in tables:
        if terminal:
            console.print(one)
            continue
        with console.capture() as printed:
            console.print(one)
        sys.stdout.write("\n".join(line.rstrip(" ") for line in printed.get().split("\n")))


def show_list(rows: Sequence[Mapping[str, Any]], form: str) -> None:
    """Print a list of things, each with the same fields: a table, JSON, or CSV. A list in a field is joined."""
    if form == "json":
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    heads = list(rows[0]) if rows else []
    cells = [[", ".join(cell) if isinstance(cell, list) else str(cell) for cell in row.values()] for row in rows]
    if form == "csv":
        csv.writer(sys.stdout).writerows([heads, *cells] if rows else [])
        return
    table = Table(*heads, box=None)
    for line in cells:
        table.add_row(*line)
    show(table)


def width() -> int | None:
    """The terminal's width, for tables to fit; ``None`` for a file or a pipe, which takes every column."""
    return Console().width if sys.stdout.isatty() else None


def print_runs(store: Store, runs: Sequence[Run], form: str, every: bool = True) -> None:
    """Print the rows of runs. Unless ``every`` row is wanted, a long table is shortened; JSON and CSV are whole."""
    from lamina import explain
    from lamina.report import table
    from lamina.store import flatten, to_csv, to_json

    if form == "table":
        for this in runs:
            rows = store.layers(this.id)
            roofs = next(iter(store.roofs(this.id)), None)
            title = f"{this.target}{_fixed(rows)} on {this.environment.get('device')} (run {this.id})"
            rooflines, shares = explain.rooflines(rows, roofs), explain.shares(rows)
            show(table.layer_table(rows, rooflines, shares, title, width(), brief=not every))
        return
    flat = [row for this in runs for row in flatten(this, store.layers(this.id))]
    (to_json if form == "json" else to_csv)(flat, sys.stdout)


def _fixed(rows: Sequence[LayerRun]) -> str:
    """The values of the grid's axes that all rows share, which are no columns then."""
    axes = {"impl": "", "precision": "", "layout": "", "batch": "batch "}
    values = [{f"{word}{getattr(row, axis)}" for row in rows} for axis, word in axes.items()]
    shared = [value for found in values if len(found) == 1 for value in found]
    return f", {' '.join(shared)}," if shared else ""


def print_reproduced(done: Reproduced) -> None:
    """Print published values beside measured ones."""
    from lamina.report import table

    entry = done.entry
    show(table.published_table(done.rows, f"{entry.place}: {entry.title}", entry.note))


def print_network(
    name: str, batch: int, layers: Sequence[ResolvedLayer], itemsize: int, remarks: Sequence[str]
) -> None:
    """Print a network's layers with their costs, and notes on its file."""
    from lamina.report import table

    show(table.network_table(layers, itemsize, f"{name}, batch {batch}", width()))
    for note in remarks:
        sys.stdout.write(f"note: {note}\n")


def layer_document(network: str, resolved: ResolvedLayer, itemsize: int) -> dict[str, Any]:
    """One layer as JSON: shapes, parameters, and each phase's operations and bytes."""
    layer = resolved.layer
    costs = {phase: resolved.cost(phase, itemsize) for phase in resolved.phases}
    return {
        "network": network,
        "name": resolved.name,
        "type": layer.kind,
        "inputs": [list(shape) for shape in resolved.inputs],
        "output": list(resolved.output),
        "parameters": resolved.parameters,
        "phases": {
            phase.value: {
                "flops": cost.flops if layer.counted else None,
                "bytes_read": cost.bytes_read,
                "bytes_written": cost.bytes_written,
            }
            for phase, cost in costs.items()
        },
    }

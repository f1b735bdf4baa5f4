"""Grids of command lines of a verb, and how far a sweep is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import typer

from lamina.cli import options
from lamina.cli.simulate import write
from lamina.cli.sweep import Common, results_alone_on_stdout
from lamina.errors import UsageError, nearest

if TYPE_CHECKING:
    from rich.table import Table

    from lamina.pipeline.sweep.cells import Command
    from lamina.pipeline.sweep.flow import Progress
    from lamina.pipeline.sweep.stored import CellRun
    from lamina.spec.grid import Grid

VERBS = ("bench", "profile", "what-if", "train", "sparsity", "deft", "study")
"""Verbs whose command lines can be cells; ``simulate`` grids have cells of their own."""


def sweep_cells(grid: Grid, source: str, common: Common) -> None:
    """Run the cells of a grid, and print their outcomes."""
    from lamina.pipeline.sweep.cells import cells, short_settings

    command = command_of(grid.verb, source)
    planned = cells(grid, command, source, complaint)
    if common.dry_run:
        swept = _swept([cell.settings for cell in planned])
        typer.echo(f"{grid.name}: {len(planned)} cells of lamina {grid.verb}")
        for cell in planned:
            typer.echo(f"  {short_settings({key: cell.settings[key] for key in swept if key in cell.settings})}")
        return
    from lamina.cli.watching import Bar
    from lamina.pipeline.sweep.engines import engine_of
    from lamina.pipeline.sweep.flow import sweep
    from lamina.store import open_store

    gpus = visible_gpus(grid)
    engine = engine_of(common.engine, common.workers or len(gpus) or 1, gpus)
    with open_store(common.store) as database:
        with Bar() as bar, results_alone_on_stdout():
            task = bar.add_task(f"sweep of {grid.verb}", total=len(planned))

            def watch(event: Progress) -> None:
                bar.update(task, completed=event.done, total=event.total)
                if event.cell is not None and event.cell.state == "failed":
                    bar.say(f"failed: {short_settings(event.cell.settings)}: {event.cell.reason}")

            done = sweep(
                grid,
                planned,
                database,
                engine,
                limits=common.bounds(),
                retries=common.retries,
                command=options.command_line(),
                resume=common.resume,
                fresh=common.fresh,
                watch=watch,
            )
        _show(done.cells, common.form, f"{grid.name}: {grid.verb}")
        typer.echo(
            f"run {done.run.id} is in {database.place}; {done.found} of {len(planned)} cells were stored before",
            err=True,
        )
    if done.failed:
        raise typer.Exit(1)


def show_status(store: str, run: str, form: str) -> None:
    """Print how far a sweep is."""
    from lamina.pipeline.sweep.stored import status
    from lamina.store import open_store

    with open_store(store, read_only=True) as database:
        found = status(database, run)
    counts = {"done": found.done, "failed": found.failed, "pending": found.pending}
    if form == "json":
        this = {"run": found.run.id, "name": found.run.target, "status": found.run.status, "total": found.total}
        document = this | counts | {"cells": [cell.to_dict() for cell in found.cells]}
        typer.echo(json.dumps(document, indent=1, allow_nan=False))
        return
    if form == "csv" or found.cells:
        _show(found.cells, form, f"{found.run.target} (run {found.run.id})")
    spelled = ", ".join(f"{count} {state}" for state, count in counts.items())
    typer.echo(
        f"{found.run.target} (run {found.run.id}, {found.run.status}): {spelled} of {found.total}", err=form == "csv"
    )


def command_of(verb: str, source: str) -> Command:
    """The options of a command, by all of their names.

    Raises:
        UsageError: the verb cannot be swept; with the nearest one.
    """
    from lamina.pipeline.sweep.cells import Command, Option

    group: Any = _group()
    known = tuple(name for name in VERBS if name in group.commands)
    name = verb.replace("_", "-")
    if name not in known:
        raise UsageError(f"{source}: verb {verb!r} cannot be swept: {nearest(verb, ('simulate', *known))}")
    found: dict[str, Option] = {}
    argument = Option("")
    for one in group.commands[name].params:
        flags = [flag for flag in one.opts if flag.startswith("--")]
        if not flags:
            argument = Option(one.name)
            continue
        off = next(iter(one.secondary_opts), "")
        option = Option(_name(flags[0]), flags[0], bool(one.is_flag), off)
        found |= {_name(flag): option for flag in flags}
    for alias in (argument.name, "model", "network"):
        found.setdefault(alias, argument)
    return Command(name, (name,), found)


def complaint(words: tuple[str, ...]) -> str:
    """What a command line lacks or has too much; empty for nothing."""
    group: Any = _group()
    try:
        group.commands[words[0]].make_context(words[0], list(words[1:]))
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return f"lamina {' '.join(words)}: {error.format_message()}"
    return ""


def visible_gpus(grid: Grid) -> tuple[str, ...]:
    """The GPUs that cells may be assigned to: none where the grid itself says which, or uses none."""
    devices = {str(settings.get("device", "auto")) for settings in grid.configurations()}
    if devices == {"cpu"} or any(re.fullmatch(r"cuda:\d+", device) for device in devices):
        return ()
    import torch

    names = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return tuple(names or map(str, range(torch.cuda.device_count()))) if torch.cuda.is_available() else ()


@cache
def _group() -> Any:
    from lamina.cli import app

    return typer.main.get_command(app)


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _show(cells: Sequence[CellRun], form: str, title: str) -> None:
    from lamina.cli import printing

    rows = [cell.to_dict() for cell in cells]
    if form == "table":
        printing.show(_cells_table(rows, title))
    else:
        write(rows, form)


def _swept(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings in which cells differ; all of them where there is one cell."""
    settings = list(dict.fromkeys(key for cell in cells for key in cell))
    return [key for key in settings if len({cell.get(key) for cell in cells}) > 1] or settings


def _cells_table(rows: Sequence[dict[str, Any]], title: str) -> Table:
    """Cells by the settings in which they differ."""
    from lamina.cli import printing
    from lamina.pipeline.sweep.cells import spelled
    from lamina.report.plain_table import Line, plain_table

    fixed = ("key", "state", "run", "reason", "attempts", "cell_seconds")
    swept = _swept([{key: value for key, value in row.items() if key not in fixed} for row in rows])
    lines = [
        Line(
            [
                *("" if row.get(key) is None else spelled(row[key]) for key in swept),
                row["state"],
                f"{row['cell_seconds']:.1f} s",
                str(row["attempts"]),
                row["run"],
                row["reason"],
            ]
        )
        for row in rows
    ]
    headings = [*swept, "state", "time", "attempts", "run", "reason"]
    return plain_table(
        headings, lines, numeric=["time", "attempts"], title=title, width=printing.width(), wrapped="reason"
    )

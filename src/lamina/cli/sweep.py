"""``lamina sweep``: simulate and compare a grid of designs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.cli.simulate import FreshOption, WorkersOption, simulating, write
from lamina.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from lamina.simulate.design_space import Design

GRID = r"A TOML file with \[base], \[axes] and an optional \[baseline]."


@handled
def sweep(
    grid: Annotated[Path, typer.Argument(metavar="GRID", help=GRID)],
    workers: WorkersOption = None,
    store: options.StoreOption = "",
    resume: options.ResumeOption = False,
    fresh: FreshOption = False,
    format_: options.FormatOption = "table",
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Draw speedup over SRAM size: a .png or .svg file.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the grid and count its designs; simulate nothing.")
    ] = False,
) -> None:
    """Simulate every design of a grid, and compare speedups and SRAM sizes.

    Results are stored as they come; stored results, of an interrupted or another sweep, are not simulated again.
    JSON holds the designs and the results of all layers; CSV holds the designs.

    Exit codes: 0 done, 1 a layer has no result, 2 usage, 70 internal error, 130 interrupted.

    Example:

        lamina sweep sweep.toml --workers 2 --figure pareto.svg
    """
    from lamina.cli import printing
    from lamina.pipeline.simulate.sweep import plan
    from lamina.pipeline.simulate.sweep import sweep as run
    from lamina.report.figures.pareto import pareto_figure
    from lamina.report.still import ENDINGS, save
    from lamina.simulate.grid import read_grid
    from lamina.store import open_store

    (form,) = options.choices("--format", format_, options.FORMATS)
    if figure is not None and figure.suffix.lower() not in ENDINGS:
        raise UsageError(f"--figure {figure.name}: expected a name that ends in {' or '.join(ENDINGS)}")
    planned = plan(read_grid(grid), str(grid))
    if dry_run:
        typer.echo(f"{planned.grid.name}: {len(planned.jobs)} designs, {len(planned.all)} layers to simulate")
        return
    with open_store(options.store_url(store)) as database:
        with simulating(workers) as (engine, watch):
            done = run(
                planned,
                database,
                engine,
                command=options.command_line(),
                resume=resume,
                fresh=fresh,
                watch=watch,
            )
        designs = [one.to_dict() for one in done.designs]
        if form == "table":
            printing.show(_design_table(done.designs, planned.grid.name))
        elif form == "csv":
            write(designs, "csv")
        else:
            layers = [result.to_dict() | {"config": dict(result.job.config)} for result in done.simulated.results]
            document = {"name": planned.grid.name, "run": done.simulated.run.id, "designs": designs, "layers": layers}
            typer.echo(json.dumps(document, indent=1, allow_nan=False))
        if figure is not None:
            drawn = pareto_figure(designs)
            outcome = save(drawn, figure, planned.grid.name) if drawn.plot else f"not drawn: {drawn.reason}"
            typer.echo(f"figure: {outcome}", err=True)
        found = f"{done.simulated.found} of {len(planned.all)} results were stored before"
        typer.echo(f"run {done.simulated.run.id} is in {database.place}; {found}", err=True)
    if done.simulated.failed:
        raise typer.Exit(1)


def _design_table(designs: Sequence[Design], title: str) -> Table:
    """Designs by workload, the Pareto-optimal ones marked."""
    from lamina.cli import printing
    from lamina.report import units
    from lamina.report.plain_table import Line, plain_table

    swept = list(designs[0].settings)
    lines = []
    for one in designs:
        settings = [str(one.settings[key]) for key in swept]
        time = units.duration(one.microseconds) if one.microseconds is not None else "-"
        speedup = f"{one.speedup:.3f}x" if one.speedup is not None else "-"
        front = "front" if one.front else ""
        cells = [one.network, str(one.batch), *settings, time, speedup, units.size(one.sram_bytes), front, one.reason]
        lines.append(Line(cells))
    headings = ["network", "batch", *swept, "time", "speedup", "SRAM", "Pareto", "note"]
    if not any(one.reason for one in designs):
        headings, lines = headings[:-1], [Line(line.cells[:-1]) for line in lines]
    numeric = ["batch", *swept, "time", "speedup", "SRAM"]
    return plain_table(headings, lines, numeric=numeric, title=title, width=printing.width(), wrapped="note")

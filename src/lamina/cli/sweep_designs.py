"""Grids of simulated designs: speedup over SRAM size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lamina.cli import options
from lamina.cli.simulate import simulating, write
from lamina.cli.sweep import Common, results_alone_on_stdout
from lamina.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from lamina.simulate.design_space import Design
    from lamina.simulate.engines import Engine
    from lamina.spec.grid import Grid


def require_drawable(figure: Path) -> None:
    """Refuse a file of an unknown format.

    Raises:
        UsageError: naming the known ones.
    """
    from lamina.report.still import ENDINGS

    if figure.suffix.lower() not in ENDINGS:
        raise UsageError(f"--figure {figure.name}: expected a name that ends in {' or '.join(ENDINGS)}")


def sweep_designs(grid: Grid, source: str, common: Common, figure: Path | None) -> None:
    """Simulate the designs of a grid, and print them."""
    from lamina.cli import printing
    from lamina.pipeline.simulate.sweep import plan
    from lamina.pipeline.simulate.sweep import sweep as run
    from lamina.pipeline.sweep.cells import short_settings
    from lamina.report.figures.pareto import pareto_figure
    from lamina.report.still import save
    from lamina.store import open_store

    planned = plan(grid, source)
    if common.dry_run:
        typer.echo(f"{grid.name}: {len(planned.jobs)} designs, {len(planned.all)} layers to simulate")
        for ((network, batch), swept), jobs in planned.jobs.items():
            settings = {"network": network, "batch": batch, **dict(swept)}
            typer.echo(f"  {short_settings(settings)}: {len(jobs)} layers")
        return
    own = _engine(common)
    with open_store(common.store) as database:
        with simulating(common.workers, own) as (engine, watch), results_alone_on_stdout():
            done = run(
                planned,
                database,
                engine,
                command=options.command_line(),
                resume=common.resume,
                fresh=common.fresh,
                watch=watch,
            )
        designs = [one.to_dict() for one in done.designs]
        if common.form == "table":
            printing.show(_design_table(done.designs, grid.name))
        elif common.form == "csv":
            write(designs, "csv")
        else:
            layers = [result.to_dict() | {"config": dict(result.job.config)} for result in done.simulated.results]
            document = {"name": grid.name, "run": done.simulated.run.id, "designs": designs, "layers": layers}
            typer.echo(json.dumps(document, indent=1, allow_nan=False))
        if figure is not None:
            drawn = pareto_figure(designs)
            outcome = save(drawn, figure, grid.name) if drawn.plot else f"not drawn: {drawn.reason}"
            typer.echo(f"figure: {outcome}", err=True)
        found = f"{done.simulated.found} of {len(planned.all)} results were stored before"
        typer.echo(f"run {done.simulated.run.id} is in {database.place}; {found}", err=True)
    if done.simulated.failed:
        raise typer.Exit(1)


def _engine(common: Common) -> Engine | None:
    """The engine of the jobs; none for simulating in this process."""
    from lamina.pipeline.simulate.jobs_engine import JobsEngine
    from lamina.pipeline.sweep.engines import engine_of

    if common.engine == "local" and common.workers == 1 and not any(common.limits):
        return None
    return JobsEngine(engine_of(common.engine, common.workers), common.bounds(), common.retries)


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

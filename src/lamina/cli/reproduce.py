"""``lamina reproduce``: the papers' tables and figures, measured again."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from lamina.cli import options
from lamina.cli.handled import handled

app = typer.Typer(
    no_args_is_help=True, help="The papers' tables and figures, with published values beside measured ones."
)


@app.command("ls")
@handled
def list_entries() -> None:
    """List what can be reproduced."""
    from rich.table import Table

    from lamina.cli import printing
    from lamina.spec.published import entries

    table = Table("name", "place", "what it shows", "how", box=None)
    for entry in entries():
        how = "counted" if entry.counts else "profiled" if entry.figures else "changed" if entry.changes else "measured"
        table.add_row(entry.id, entry.place, entry.title, how)
    printing.show(table)


@app.command("run")
@handled
def run(
    name: Annotated[str, typer.Argument(help="A name of 'lamina reproduce ls'.")],
    device: options.DeviceOption = "auto",
    batch_size: Annotated[
        str, typer.Option("--batch-size", "-b", help="Another batch than the paper's, for smaller machines.")
    ] = "",
    precision: Annotated[str, typer.Option("--precision")] = "",
    repeat: Annotated[int | None, typer.Option("--repeat", min=1)] = None,
    stored: Annotated[
        str,
        typer.Option(
            "--run",
            help="A stored run to look at instead of measuring: 'lamina runs import alexnet_nvidia-h200' brings one.",
        ),
    ] = "",
    against: Annotated[str, typer.Option("--against", help="A second stored run, for figures that compare two.")] = "",
    store: options.StoreOption = "",
    report: Annotated[Path | None, typer.Option("--report", help="Also write an HTML report here.")] = None,
) -> None:
    """Count or measure one table or figure.

    Figures come with what the paper reads off them; each statement is looked for in our profile, and may not hold on
    another GPU: that is a result.

    Examples:

        lamina reproduce run dnnmark-table-5.1

        lamina reproduce run icpe18-figure-5.7 --run latest
    """
    from lamina import pipeline
    from lamina.cli import printing
    from lamina.cli.again import Again
    from lamina.cli.bench import overridden
    from lamina.cli.watching import Watcher
    from lamina.spec.published import entry
    from lamina.store import open_store

    published = entry(name)
    asked = {
        "batch": options.counts("--batch-size", batch_size) if batch_size else [],
        "precision": options.allowed("--precision", precision, "precision"),
        "repeat": repeat,
    }
    workload = overridden(published.workload, asked)
    if published.counts:
        printing.print_reproduced(pipeline.reproduce(published, workload, None, options.cache_folder()))
        return
    workload = workload.model_copy(update={"device": options.device_name(device)})
    with open_store(options.store_place(store)) as database:
        with Watcher() as watch:
            done = pipeline.reproduce(
                published,
                workload,
                database,
                options.cache_folder(),
                run_id=stored,
                against=against,
                replay=Again(published.recipe, workload, pipeline.Options(), (), "").iterate,
                command=shlex.join(["lamina", *sys.argv[1:]]),
                watch=watch,
            )
        printing.print_reproduced(done)
        if done.run is not None:
            if not published.figures:
                printing.print_runs(database, [done.run], "table")
            for figure in published.figures:
                typer.echo(f"figure: lamina report {done.run.id} --figure {figure} -o {figure}.svg", err=True)
            if report is not None:
                typer.echo(f"report: {pipeline.report(database, done.run.id, report)}", err=True)

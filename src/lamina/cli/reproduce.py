"""``lamina reproduce``: the papers' tables and figures, measured again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.cli.simulate import FreshOption, WorkersOption, hierarchy, simulating
from lamina.errors import UsageError

if TYPE_CHECKING:
    from lamina.spec.published import Published

app = typer.Typer(
    no_args_is_help=True, help="Reproduce the papers' tables and figures: published values beside measured ones."
)


@app.command("ls")
@handled
def list_entries() -> None:
    """List the tables and figures that can be reproduced.

    Example:

        lamina reproduce ls
    """
    from rich.table import Table

    from lamina.cli import printing
    from lamina.spec.published import entries

    table = Table("name", "place", "what it shows", "how", box=None)
    for entry in entries():
        table.add_row(entry.id, entry.place, entry.title, entry.how)
    printing.show(table)


@app.command("run")
@handled
def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of 'lamina reproduce ls'.")],
    device: options.DeviceOption = "auto",
    batch_size: Annotated[
        str, typer.Option("--batch-size", "-b", help="Another batch size than the paper's, for smaller machines.")
    ] = "",
    precision: Annotated[str, typer.Option("--precision", help="Another precision than the paper's.")] = "",
    repeat: Annotated[int | None, typer.Option("--repeat", min=1, help="Samples of each timing.")] = None,
    stored: Annotated[
        str,
        typer.Option(
            "--run",
            help="A stored run to use instead of measuring; 'lamina runs import alexnet_nvidia-h200' imports one.",
        ),
    ] = "",
    against: Annotated[str, typer.Option("--against", help="A second stored run, for figures that compare two.")] = "",
    store: options.StoreOption = "",
    report: Annotated[Path | None, typer.Option("--report", help="Also write an HTML report here.")] = None,
    set_: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Setting of a simulation, such as batch=8. Repeatable."),
    ] = [],  # noqa: B006  (typer copies it)
    workers: WorkersOption = None,
    resume: options.ResumeOption = False,
    fresh: FreshOption = False,
) -> None:
    """Count, measure or simulate what a table or figure of a paper shows.

    A figure comes with the paper's statements about it. Each statement is checked against the measured profile. That
    one does not hold on another GPU is a result.

    Examples:

        lamina reproduce run dnnmark-table-5.1

        lamina reproduce run icpe18-figure-5.7 --run latest

        lamina reproduce run spartan-figure-6.16 --workers 2
    """
    from lamina import pipeline
    from lamina.cli import printing
    from lamina.cli.again import Again
    from lamina.cli.networks import overridden
    from lamina.spec.published import entry

    options.device(device)
    published = entry(name)
    if published.how == "simulated":
        if batch_size or precision or repeat or stored or against or report or device != "auto":
            raise UsageError(f"{name} is simulated: expected only --set, --workers, --resume, --fresh, --store")
        _simulate(published, store, set_, workers, resume, fresh)
        return
    if set_ or workers or fresh:
        raise UsageError(f"--set, --workers and --fresh are for what is simulated: {name} is {published.how}")
    settings = {
        "batch": options.counts("--batch-size", batch_size) if batch_size else [],
        "precision": options.allowed("--precision", precision, "precision"),
        "repeat": repeat,
    }
    workload = overridden(published.workload, settings)
    if published.counts or published.unmeasured:
        printing.print_reproduced(pipeline.reproduce(published, workload, None, options.cache_folder()))
        return

    from lamina.cli.watching import Watcher
    from lamina.store import open_store

    workload = workload.model_copy(update={"device": options.device_name(device)})
    with open_store(options.store_url(store)) as database:
        with Watcher() as watch:
            done = pipeline.reproduce(
                published,
                workload,
                database,
                options.cache_folder(),
                run_id=stored,
                against=against,
                replay=Again(published.recipe, workload, pipeline.Options(), (), "").iterate,
                command=options.command_line(),
                resume=resume,
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


def _simulate(
    published: Published, store: str, set_: list[str], workers: int | None, resume: bool, fresh: bool
) -> None:
    hierarchy()
    from lamina import pipeline
    from lamina.cli import printing
    from lamina.pipeline.reproduce.simulated import Simulating
    from lamina.simulate.grid import value_of
    from lamina.store import open_store

    settings = {key: value_of(value) for key, value in options.pairs(set_).items()}
    with open_store(options.store_url(store)) as database:
        with simulating(workers) as (engine, watch):
            done = pipeline.reproduce(
                published,
                published.workload,
                database,
                options.cache_folder(),
                simulating=Simulating(engine, settings, watch, resume, fresh),
                command=options.command_line(),
            )
        printing.print_reproduced(done)
        assert done.run is not None
        typer.echo(f"run {done.run.id} is in {database.place}", err=True)
        for reason in done.run.remarks:
            typer.echo(f"no result: {reason}", err=True)
        if done.run.remarks:
            raise typer.Exit(1)

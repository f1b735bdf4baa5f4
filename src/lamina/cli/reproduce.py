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
        table.add_row(entry.id, entry.place, entry.title, entry.how)
    printing.show(table)


@app.command("run")
@handled
def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of 'lamina reproduce ls'.")],
    device: options.DeviceOption = "auto",
    batch_size: Annotated[
        str, typer.Option("--batch-size", "-b", help="Another batch than the paper's, for smaller machines.")
    ] = "",
    precision: Annotated[str, typer.Option("--precision", help="Another than the paper's.")] = "",
    repeat: Annotated[int | None, typer.Option("--repeat", min=1, help="Samples of each timing.")] = None,
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
    set_: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Of simulated ones: batch=8 at every point. Repeatable."),
    ] = [],  # noqa: B006  (typer copies it)
    workers: WorkersOption = None,
    resume: options.ResumeOption = False,
    fresh: FreshOption = False,
) -> None:
    """Count, measure or simulate one table or figure.

    Figures come with what the paper reads off them; each statement is looked for in our profile, and may not hold on
    another GPU: that is a result.

    Examples:

        lamina reproduce run dnnmark-table-5.1

        lamina reproduce run icpe18-figure-5.7 --run latest

        lamina reproduce run spartan-figure-6.16 --workers 2
    """
    from lamina import pipeline
    from lamina.cli import printing
    from lamina.cli.again import Again
    from lamina.cli.networks import overridden
    from lamina.cli.watching import Watcher
    from lamina.spec.published import entry
    from lamina.store import open_store

    published = entry(name)
    if published.how == "simulated":
        if batch_size or precision or repeat or stored or against or report or device != "auto":
            raise UsageError(f"{name} is simulated: expected only --set, --workers, --resume, --fresh, --store")
        _simulate(published, store, set_, workers, resume, fresh)
        return
    if set_ or workers or fresh:
        raise UsageError(f"--set, --workers and --fresh are for what is simulated: {name} is {published.how}")
    asked = {
        "batch": options.counts("--batch-size", batch_size) if batch_size else [],
        "precision": options.allowed("--precision", precision, "precision"),
        "repeat": repeat,
    }
    workload = overridden(published.workload, asked)
    if published.counts or published.unmeasured:
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
    with open_store(options.store_place(store)) as database:
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
        for remark in done.run.remarks:
            typer.echo(f"no result: {remark}", err=True)
        if done.run.remarks:
            raise typer.Exit(1)

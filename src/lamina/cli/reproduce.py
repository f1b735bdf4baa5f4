"""``lamina reproduce``: the papers' tables and figures, measured again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.cli.simulate import FreshOption, WorkersOption, hierarchy, simulating
from lamina.errors import MissingError, UsageError

if TYPE_CHECKING:
    from lamina.spec.published import Published

app = typer.Typer(
    no_args_is_help=True, help="Reproduce the papers' tables and figures: published values beside measured ones."
)


@app.command("ls")
@handled
def list_entries(format_: options.FormatOption = "table") -> None:
    """List the tables and figures that can be reproduced.

    Example:

        lamina reproduce ls
    """
    from lamina.cli import printing
    from lamina.spec.published import entries

    (form,) = options.choices("--format", format_, options.FORMATS)
    rows = [{"name": one.id, "place": one.place, "title": one.title, "how": one.how} for one in entries()]
    printing.show_list(rows, form)


QuickOption = Annotated[bool, typer.Option("--quick", help="Measure a small version, in minutes on a CPU.")]


@app.command("all")
@handled
def every(
    device: options.DeviceOption = "auto",
    quick: QuickOption = False,
    format_: Annotated[str, typer.Option("--format", help="table, json or html.")] = "table",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File of the page or the JSON; default stdout, for html reproduced.html."),
    ] = None,
) -> None:
    """Reproduce every table and figure: published and measured values, their ratio, and a verdict.

    Uses recorded rows, counts and stored simulations. With --quick, what can be measured here is measured in a small
    version. Tables of settings are counted apart.

    Exit code 1 if an entry has no measured row and is not marked as not applicable.

    Examples:

        lamina reproduce all

        lamina reproduce all --format html -o reproduced.html
    """
    import json

    (form,) = options.choices("--format", format_, ("table", "json", "html"))
    if output is not None and form == "table":
        raise UsageError("--output: expected --format html or json, which go to a file; a table goes to stdout")
    options.writable("--output", output)
    options.device(device)

    from lamina.cli import printing
    from lamina.cli.watching import Watcher
    from lamina.pipeline.reproduce.every import reproduce_all
    from lamina.pipeline.reproduce.verdicts import TOLERANCE

    with Watcher() as watch:
        done = reproduce_all(options.device_name(device) if quick else "cpu", quick=quick, watch=watch)
    if form == "html":
        from lamina.report.html.reproduced import write_reproduced

        path = write_reproduced(output or Path("reproduced.html"), done.to_dict(), str(done), f"{TOLERANCE:.0%}")
        typer.echo(f"report: {path}", err=True)
        typer.echo(str(done))
    elif form == "json":
        text = json.dumps(done.to_dict() | {"summary": str(done)}, indent=1)
        if output:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(text + "\n", encoding="utf-8")
        else:
            typer.echo(text)
    else:
        from lamina.report import table

        document = done.to_dict()["entries"]
        for title, configuration in (("Results", False), ("Tables of settings, which are no results", True)):
            lines = [line for line in document if line["configuration"] is configuration]
            printing.show(table.verdict_table(lines, title, printing.width()))
        typer.echo(str(done))
    if done.without_rows:
        raise typer.Exit(1)


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
    quick: QuickOption = False,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Use the rows that lamina ships instead of measuring or simulating.")
    ] = False,
) -> None:
    """Count, measure or simulate what a table or figure of a paper shows.

    A figure comes with the paper's statements about it. Each statement is checked against the measured profile. That
    one does not hold on another GPU is a result.

    Without a GPU, entries that need one are shown with recorded rows, labelled with their device, date and commit.
    With --quick, a small version is measured here if this machine can.

    Examples:

        lamina reproduce run dnnmark-table-5.1

        lamina reproduce run icpe18-figure-5.7 --run latest

        lamina reproduce run spartan-figure-6.16 --workers 2

        lamina reproduce run spartan-table-6.6 --quick
    """
    from lamina import pipeline
    from lamina.cli import printing
    from lamina.cli.again import Again
    from lamina.cli.networks import overridden
    from lamina.spec.published import entry

    options.device(device)
    options.writable("--report", report)
    published = entry(name)
    if quick and recorded:
        raise UsageError("--quick measures and --recorded does not: expected one of them")
    if quick and not published.measures:
        raise UsageError(f"--quick is for what is measured as a whole: {name} is {published.how}")
    given = {"--batch-size": batch_size, "--precision": precision, "--repeat": repeat, "--run": stored,
             "--against": against, "--report": report, "--set": set_, "--workers": workers, "--resume": resume,
             "--fresh": fresh}  # fmt: skip
    unused = [option for option, value in given.items() if value]
    if not unused and published.how == "profiled" and device == "auto" and not recorded:
        recorded = options.device_name(device) == "cpu"
        if recorded:
            typer.echo(f"{name} needs a GPU: a recorded profile is shown (--device cpu profiles this CPU)", err=True)
    if recorded or published.measures or published.not_applicable:
        if unused:
            raise UsageError(f"{', '.join(unused)}: {name} takes only --device, --quick and --recorded here")
        _show(published, device, quick, recorded)
        return
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
    if published.counts:
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


def _show(published: Published, device: str, quick: bool, recorded: bool) -> None:
    """Measure here where that is possible, and use recorded rows otherwise."""
    from lamina.cli import printing
    from lamina.pipeline.reproduce import reproduce_measured, reproduce_recorded
    from lamina.pipeline.reproduce.measured import measurement
    from lamina.pipeline.reproduce.verdicts import of_entry

    known = measurement(published.measures) if published.measures and not recorded else None
    name = options.device_name(device) if known is not None and known.run is not None else "cpu"
    done = None
    if quick or name != "cpu":
        try:
            done = reproduce_measured(published, name, quick)
        except MissingError as error:  # no GPU, or no counters
            if known is None or not known.recorded:
                raise
            typer.echo(f"{error}; recorded rows are shown", err=True)
    done = done or reproduce_recorded(published)
    printing.print_reproduced(done)
    typer.echo(f"ours: {done.source or 'none'}")
    typer.echo(f"verdict: {of_entry(published, done.rows)}")


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

"""``lamina runs``: list, show, export, import and query the runs in the trace database."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.errors import UsageError, nearest

if TYPE_CHECKING:
    from lamina.record import KernelRun, Run

app = typer.Typer(
    no_args_is_help=True, help="Runs in the trace database: list, show, compare, export, import, query, delete."
)

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, its beginning, or 'latest'.")]


@app.command("ls")
@handled
def list_runs(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Runs in the list.")] = 20,
    verb: Annotated[str, typer.Option("--verb", help="Only runs of this verb, such as bench or train.")] = "",
    format_: options.FormatOption = "table",
    store: options.StoreOption = "",
) -> None:
    """List runs, the latest first.

    Example:

        lamina runs ls --verb bench --limit 5
    """
    from lamina.cli import printing
    from lamina.report.table import runs_table
    from lamina.store import open_store

    (form,) = options.choices("--format", format_, options.FORMATS)
    with open_store(options.stored_url(store), read_only=True) as database:
        found = database.runs(limit, verb or None)
        if verb and not found and (known := database.verbs()):
            raise UsageError(f"--verb: {database.place} has no run of {verb!r}: {nearest(verb, known)}")
        if form == "table":
            printing.show(runs_table(found, f"runs in {database.place}", printing.width()))
        else:
            printing.show_list([_facts(run) for run in found], form)


def _facts(run: Run) -> dict[str, Any]:
    """What a list says of a run."""
    return {
        "run": run.id,
        "verb": run.verb,
        "target": run.target,
        "device": run.environment.get("device", ""),
        "started": run.started,
        "finished": run.finished or "",
        "status": run.status,
        "command": run.command,
    }


@app.command("show")
@handled
def show_run(
    run: RunArgument = "latest",
    kernels: Annotated[bool, typer.Option("--kernels", help="Print every kernel launch, as CSV.")] = False,
    layer: Annotated[str, typer.Option("--layer", help="With --kernels: only those of this layer.")] = "",
    format_: options.FormatOption = "table",
    every: options.AllOption = False,
    store: options.StoreOption = "",
) -> None:
    """Show what a run holds: layers, epochs, what-ifs, simulated kernels, observed sparsity; or its kernels.

    Example:

        lamina runs show latest --kernels --layer features.0
    """
    from lamina.cli.shown import show_all
    from lamina.store import open_store

    options.choices("--format", format_, options.FORMATS)
    if layer and not kernels:
        raise UsageError("--layer: expected --kernels beside it")
    with open_store(options.stored_url(store), read_only=True) as database:
        this = database.run(run)
        if kernels:
            known = {row.layer for row in database.layers(this.id)}
            if layer and layer not in known:
                raise UsageError(f"--layer: run {this.id} has no layer {layer!r}: {nearest(layer, known)}")
            print_kernels(database.kernels(this.id, layer or None))
            return
        show_all(database, this, format_, every)


def print_kernels(launches: Iterable[KernelRun]) -> None:
    """Print launches as CSV; the extents of copies and fills are empty."""
    from lamina.record import KernelRun, Key

    table = csv.writer(sys.stdout)
    table.writerow([*Key._fields, *(field.name for field in fields(KernelRun) if field.name != "key")])
    for launch in launches:
        extents = ["x".join(map(str, extent or ())) for extent in (launch.grid, launch.block)]
        resources = [launch.registers, launch.shared_bytes, launch.duration_us]
        table.writerow([*launch.key, launch.invocation, launch.name, *extents, *resources])


@app.command("diff")
@handled
def diff(
    first: RunArgument,
    second: Annotated[str, typer.Argument(metavar="OTHER", help="The run that is compared with RUN.")],
    store: options.StoreOption = "",
) -> None:
    """Compare two runs layer by layer; 'lamina compare' has more options.

    A difference within the spread of the samples counts as none.

    Example:

        lamina runs diff 3f2a 91bc
    """
    from lamina.cli import printing
    from lamina.pipeline.explain import compare_layers, look_up
    from lamina.report.table import diff_table
    from lamina.store import open_store

    with open_store(options.stored_url(store), read_only=True) as database:
        a, b = look_up(database, first), look_up(database, second)
    first, second = (f"{side.run.target} {side.run.id}" for side in (a, b))
    printing.show(diff_table(compare_layers(a, b), first, second, width=printing.width()))


@app.command("export")
@handled
def export(
    run: RunArgument = "latest",
    format_: Annotated[
        str,
        typer.Option("--format", help="csv, json or parquet: rows; trace: everything, for 'runs import'."),
    ] = "csv",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File; default stdout. A trace named .gz is compressed.")
    ] = None,
    store: options.StoreOption = "",
) -> None:
    """Export a run with its provenance.

    Example:

        lamina runs export latest --format parquet --output run.parquet
    """
    from lamina.cli.shown import contents
    from lamina.store import flatten, open_store, to_csv, to_json, to_parquet, write_document

    (form,) = options.choices("--format", format_, ("csv", "json", "parquet", "trace"))
    options.writable("--output", output)
    with open_store(options.stored_url(store), read_only=True) as database:
        this = database.run(run)
        document = database.export_run(this.id) if form == "trace" else None
        rows = [] if document else flatten(this, database.layers(this.id))
        if not (document or rows) and (holds := contents(database, this.id)):
            raise UsageError(
                f"--format {form}: expected a run with layers, run {this.id} ({this.verb}) has {', '.join(holds)}: "
                f"'lamina {'report' if 'a study' in holds else 'runs show'} {this.id}' shows them, --format trace "
                "exports everything"
            )
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
    if document is not None:
        write_document(document, output) if output else typer.echo(json.dumps(document, indent=1))
    elif form == "parquet":
        if output is None:
            raise UsageError("--format parquet needs --output FILE")
        to_parquet(rows, output)
    else:
        (to_csv if form == "csv" else to_json)(rows, output or sys.stdout)


@app.command("import")
@handled
def import_run(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Output of 'runs export --format trace', a .db file of lamina, a torch.profiler trace, "
            "the CSV of ncu --page raw, or the name of a recording that comes with lamina.",
        ),
    ],
    store: options.StoreOption = "",
) -> None:
    """Import runs of another machine or tool; a damaged file imports nothing.

    'lamina runs recordings' lists the recordings that come with lamina: to explain, compare and report them needs no
    GPU. The id of each run goes to stdout.

    Examples:

        lamina runs import alexnet_nvidia-h200

        lamina runs import trace.json.gz
    """
    from lamina.pipeline.imports import import_file
    from lamina.recipes import recordings
    from lamina.store import open_store

    if file.name == str(file) and not file.suffix and not file.exists():
        file = recordings.path(file.name)
    with open_store(options.store_url(store)) as database:
        runs = database.import_database(file) if file.suffix == ".db" else (import_file(file, database),)
        for run_id in runs:
            typer.echo(run_id)
            this = database.run(run_id)
            typer.echo(f"{this.verb} of {this.target} on {this.environment.get('device')}", err=True)


@app.command("recordings")
@handled
def list_recordings() -> None:
    """List the recorded profiles that come with lamina, for 'lamina runs import'.

    Example:

        lamina runs recordings
    """
    from lamina.recipes import recordings

    for name in recordings.names():
        typer.echo(name)


@app.command("sql")
@handled
def sql(
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY",
            help="A SELECT statement, of the views layer_table, kernel_table and counter_table, or of any table.",
        ),
    ],
    store: options.StoreOption = "",
) -> None:
    """Query the database in SQL, read-only; the result is CSV.

    Example:

        lamina runs sql 'select layer, phase, median_us from layer_table order by median_us desc'
    """
    from lamina.store import open_store

    with open_store(options.stored_url(store), read_only=True) as database:
        columns, rows = database.query(query)
    table = csv.writer(sys.stdout)
    table.writerow(columns)
    table.writerows(rows)


@app.command("rm")
@handled
def remove(run: RunArgument, store: options.StoreOption = "") -> None:
    """Delete a run and everything measured in it.

    Example:

        lamina runs rm 3f2a
    """
    from lamina.store import open_store

    with open_store(options.stored_url(store)) as database:
        this = database.run(run)
        database.delete(this.id)
        typer.echo(f"deleted {this.id} ({this.target})", err=True)

"""``lamina store``: check, upgrade and merge trace databases."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.errors import UsageError

app = typer.Typer(no_args_is_help=True, help="Trace databases: check, upgrade, merge.")

StoreArgument = Annotated[
    str,
    typer.Argument(
        metavar="STORE", help="A file, or a URL such as postgresql://user@host/name.", show_default="user data folder"
    ),
]


@app.command("check")
@handled
def check(store: StoreArgument = "") -> None:
    """Check that a database is whole: its file, its references, and that every run can be read.

    Exit codes: 0 whole, 1 faults, 2 no database, or one too damaged to open.

    Example:

        lamina store check runs.db
    """
    from lamina.store import open_store
    from lamina.store.checked import faults

    with open_store(_existing(store), read_only=True) as database:
        found = list(faults(database))
        for fault in found:
            typer.echo(fault)
        runs = len(database.runs(limit=None))
        typer.echo(f"{database.place}: {runs} runs, {'no fault' if not found else f'{len(found)} faults'}", err=True)
    if found:
        raise typer.Exit(1)


@app.command("migrate")
@handled
def migrate(store: StoreArgument = "") -> None:
    """Bring a database to the schema of this lamina. Every command that writes does so when it opens one.

    Example:

        lamina store migrate postgresql://team@host/lamina
    """
    from lamina.store import open_store
    from lamina.store.migrate import HEAD

    with open_store(_existing(store)) as database:
        typer.echo(f"{database.place}: schema {HEAD}")


@app.command("grant")
@handled
def grant(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="A role of the server, such as 'reports'.")],
    store: options.StoreOption = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the SQL statements; execute nothing.")] = False,
) -> None:
    """Let a role of PostgreSQL read runs, reports and comparisons, and write nothing.

    Run it as the owner of the tables. The role must exist and be allowed to connect.

    Example:

        lamina store grant reports --store postgresql://team@host/lamina
    """
    from lamina.store import open_store
    from lamina.store.grant import grant_reading, statements

    url = options.store_url(store)
    with open_store(url, read_only=True) as database:
        for one in statements(database, role):
            typer.echo(f"{one};")
    if not dry_run:
        with open_store(url) as database:
            grant_reading(database, role)
        typer.echo(f"{role} may read {database.place}", err=True)


@app.command("merge")
@handled
def merge(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="Databases to read: files or URLs.")],
    into: Annotated[str, typer.Option("--into", help="The database that gets their runs.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")] = False,
) -> None:
    """Copy the runs of databases into another, each once: those that are there already are left alone.

    A merge that was killed goes on where it stopped: give the same command again. A run that was copied while it was
    running is completed. Where both databases hold an ended run that differs, the target's stays, and the exit code
    is 1.

    Example:

        lamina store merge a.db b.db --into postgresql://team@host/lamina
    """
    from lamina.cli.watching import Bar
    from lamina.store import open_store
    from lamina.store.merge import merge as merged

    options.store_url(into, "--into")
    for store in (*sources, *([into] if dry_run else [])):
        _existing(store)
    differ = 0
    with open_store(into, read_only=dry_run) as target, Bar() as bar:
        for source in sources:
            with open_store(source, read_only=True) as database:
                task = bar.add_task(f"merging {database.place}", total=len(database.runs(limit=None)))
                counts: Counter[str] = Counter()
                for one in merged(database, target, dry_run):
                    counts[one.what] += 1
                    bar.advance(task)
                    if one.what == "differs":
                        bar.say(f"run {one.run.id} ({one.run.verb} of {one.run.target}) differs: the target's stays")
                differ += counts["differs"]
                text = ", ".join(f"{count} {what}" for what, count in counts.items()) or "no runs"
                bar.say(f"{database.place}: {text}{' (dry run)' if dry_run else ''}")
    if differ:
        raise typer.Exit(1)


def _existing(store: str) -> str:
    """The database of an argument. Refuse a file that is not there or empty: it would be made, or read as whole."""
    url = options.store_url(store, "STORE")
    file = options.database_file(store)
    if file is not None and not file.is_file():
        raise UsageError(f"{store}: expected a trace database, got no file")
    if file is not None and not file.stat().st_size:
        raise UsageError(f"{store}: expected a trace database, got an empty file; restore a copy, or name another")
    return url

"""``lamina report``: a stored run as one HTML file, or one figure of it as an image."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.errors import UsageError


@handled
def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, its beginning, or 'latest'.")] = "latest",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="HTML file, default report.html; for a figure a .png or .svg file, default ID.png."
        ),
    ] = None,
    assets: Annotated[
        str,
        typer.Option(
            "--assets", help="inline: one self-contained file; dir: the plotting library in a file of its own."
        ),
    ] = "inline",
    figure: Annotated[str, typer.Option("--figure", "-f", metavar="ID", help="Only this figure, as PNG or SVG.")] = "",
    phase: Annotated[
        str, typer.Option("--phase", help="Phase that the figure shows, or step for all phases of a layer together.")
    ] = "step",
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", "-b", min=1, help="Batch size that the figure shows, default the largest."),
    ] = None,
    against: Annotated[
        str, typer.Option("--against", metavar="RUN", help="Baseline run, for speedups and a comparison.")
    ] = "",
    against_store: Annotated[
        str, typer.Option("--against-store", help="Database of the baseline run, by default that of RUN.")
    ] = "",
    summary: Annotated[
        bool, typer.Option("--summary", help="Print a study as Markdown, for a pull request; write no page.")
    ] = False,
    list_figures: Annotated[bool, typer.Option("--list-figures", help="List the figures and exit.")] = False,
    store: options.StoreOption = "",
) -> None:
    """Write the report of a run: findings, figures, tables, provenance. It opens offline.

    --figure writes one figure as an image; --list-figures lists them.

    Examples:

        lamina report latest -o alexnet.html

        lamina report latest --figure stalls --phase forward --batch-size 64 -o stalls.svg

        lamina report latest --summary

        lamina report 3f2a --against 91bc --against-store a100.db
    """
    from lamina.pipeline import reports
    from lamina.store import open_store

    if list_figures:
        _list()
        return
    (where,) = options.choices("--assets", assets, ("inline", "dir"))
    if summary and (figure or output or against):
        raise UsageError("--summary prints Markdown on stdout: leave out --figure, --output and --against")
    if not figure and (phase != "step" or batch_size is not None):
        raise UsageError("--phase and --batch-size choose what a --figure shows; the page shows all of them")
    if against_store and not against:
        raise UsageError("--against-store is where the run of --against is, but no such run was named")
    with ExitStack() as opened:
        database = opened.enter_context(open_store(options.stored_url(store), read_only=True))
        theirs = database
        if against_store:
            url = options.stored_url(against_store, "--against-store")
            theirs = opened.enter_context(open_store(url, read_only=True))
        other = reports.Other(theirs, against) if against else None
        if summary:
            typer.echo(reports.summary(database, run), nl=False)
        elif figure:
            path = output or Path(f"{figure}.png")
            typer.echo(reports.draw(database, run, figure, path, phase, batch_size, other))
        else:
            inline = cast(Literal["inline", "dir"], where)
            typer.echo(reports.write(database, run, output or Path("report.html"), inline, other))


def _list() -> None:
    from lamina.cli import printing
    from lamina.report.figures import FIGURES
    from lamina.report.plain_table import Line, plain_table

    lines = [Line([it.id, it.title, it.caption]) for it in FIGURES.values()]
    headings = ["figure", "title", "shows"]
    printing.show(plain_table(headings, lines, width=printing.width(), wrapped="shows"))

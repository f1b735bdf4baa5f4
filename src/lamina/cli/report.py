"""``lamina report``: a stored run as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from lamina.cli import options
from lamina.cli.handled import handled


@handled
def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, its beginning, or 'latest'.")] = "latest",
    output: Annotated[Path, typer.Option("--output", "-o")] = Path("report.html"),
    assets: Annotated[
        str,
        typer.Option("--assets", help="inline: one self-contained file; dir: the plotting library beside it."),
    ] = "inline",
    store: options.StoreOption = "",
) -> None:
    """Write a run's report: time per layer and phase, roofline, findings, provenance. Opens without a network."""
    from lamina import pipeline
    from lamina.store import open_store

    (where,) = options.choices("--assets", assets, ("inline", "dir"))
    with open_store(options.store_place(store)) as database:
        typer.echo(pipeline.report(database, run, output, cast(Literal["inline", "dir"], where)))

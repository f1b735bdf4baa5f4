"""``lamina explain``: what limits a stored run, why, and what to do about it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamina.cli import options
from lamina.cli.handled import handled

if TYPE_CHECKING:
    from lamina.pipeline.explain import Explained

FORMATS = ("text", "table", "json")


@handled
def explain(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, its beginning, or 'latest'.")] = "latest",
    layer: Annotated[str, typer.Option("--layer", "-l", help="Only this layer.")] = "",
    format_: Annotated[
        str, typer.Option("--format", help="text: paragraphs; table: every finding with its potential saving; json.")
    ] = "text",
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Findings in the table; 0 for all.")] = 20,
    store: options.StoreOption = "",
) -> None:
    """Explain a run: what limits each layer and phase, why, and what would help most.

    Findings are ranked by the largest part of the step that they could save. A run of 'lamina bench' has times and
    rooflines only; one of 'lamina profile --counters full' also has kernels and hardware counters, and is explained
    in more detail.

    Examples:

        lamina explain latest

        lamina explain latest --layer features.3 --format table --limit 0
    """
    from lamina.pipeline.explain import explain as explained
    from lamina.store import open_store

    (form,) = options.choices("--format", format_, FORMATS)
    with open_store(options.store_url(store)) as database:
        done = explained(database, run, layer)
    if form == "json":
        typer.echo(json.dumps(_document(done), indent=1))
    elif form == "table":
        _print_table(done, limit)
    else:
        _print_text(done)


def _document(done: Explained) -> dict[str, Any]:
    return {
        "run": done.run.id,
        "target": done.run.target,
        "device": done.run.environment.get("device"),
        "findings": [asdict(finding) for finding in done.findings],
        "paragraphs": [asdict(paragraph) for paragraph in done.paragraphs],
    }


def _print_text(done: Explained) -> None:
    typer.echo(f"{done.run.target} on {done.run.environment.get('device')} (run {done.run.id})")
    for paragraph in done.paragraphs:
        typer.echo(f"\n{paragraph.text}")


def _print_table(done: Explained, limit: int) -> None:
    from lamina.cli import printing
    from lamina.explain import potential_saving
    from lamina.report.findings_table import findings_table

    shown = done.findings[: limit or None]
    title = f"{done.run.target} on {done.run.environment.get('device')} (run {done.run.id})"
    rows = [(finding, potential_saving(finding)) for finding in shown]
    printing.show(findings_table(rows, title, len(done.findings) - len(shown), printing.width()))

"""``lamina explain``: what limits a stored run, why, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamina.cli import options
from lamina.cli.handled import handled

if TYPE_CHECKING:
    from lamina.pipeline.explain import Explained
    from lamina.record import Finding

FORMATS = ("text", "table", "json")


@handled
def explain(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, its beginning, or 'latest'.")] = "latest",
    layer: Annotated[str, typer.Option("--layer", "-l", help="Only this layer.")] = "",
    format_: Annotated[
        str, typer.Option("--format", help="text: paragraphs; table: every finding with its potential saving; json.")
    ] = "text",
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Findings in the table; 0 for all.")] = 20,
    every: options.AllOption = False,
    store: options.StoreOption = "",
) -> None:
    """Explain a run: what limits each layer and phase, why, and what would help most.

    At most five findings come first, one line each: what costs time, how much, and what to do. The step and its longest
    layers follow. Findings are ranked by the largest part of the step that they could save; --all prints every one. A
    run of 'lamina bench' has times and rooflines only; one of 'lamina profile --counters full' also has kernels and
    hardware counters, and is explained in more detail.

    Examples:

        lamina explain latest

        lamina explain latest --layer features.3 --format table --all
    """
    from lamina.pipeline.explain import explain as explained
    from lamina.store import open_store

    (form,) = options.choices("--format", format_, FORMATS)
    with open_store(options.stored_url(store), read_only=True) as database:
        done = explained(database, run, layer)
    if form == "json":
        typer.echo(json.dumps(_document(done), indent=1))
    elif form == "table":
        _print_table(done, 0 if every else limit)
    else:
        _print_text(done, every)


def _document(done: Explained) -> dict[str, Any]:
    return {
        "run": done.run.id,
        "target": done.run.target,
        "device": done.run.environment.get("device"),
        "headlines": [asdict(finding) for finding in done.headlines],
        "findings": [asdict(finding) for finding in done.findings],
        "paragraphs": [asdict(paragraph) for paragraph in done.paragraphs],
    }


def _print_text(done: Explained, every: bool) -> None:
    from lamina.report.units import sentence

    typer.echo(f"{done.run.target} on {done.run.environment.get('device')} (run {done.run.id})")
    settings = dict.fromkeys(
        [*(str(it.evidence.get("setting", "")) for it in done.headlines), *(it.setting for it in done.paragraphs)]
    )
    for setting in settings:
        top = [it for it in done.headlines if it.evidence.get("setting", "") == setting]
        lines = [_capitalized(it.claim.removeprefix(f"{setting}: ")) for it in top]
        if lines:
            typer.echo("")
        if setting and lines:
            typer.echo(f"{setting}:")
        for number, line in enumerate(lines, 1):
            typer.echo(f"{number}. {sentence(line)}")
        for paragraph in done.paragraphs:
            if paragraph.setting == setting:
                typer.echo(f"\n{sentence(paragraph.text)}")
    if every and done.findings:
        typer.echo("\nEvery finding, with its potential saving:")
        _print_findings(done.findings)
    elif not settings:
        typer.echo("\nnothing to explain: no layer has a time")
        _print_findings(done.findings)


def _capitalized(claim: str) -> str:
    """A claim as a line; the name of a layer at its beginning stays as it is."""
    return f"The {claim.removeprefix('the ')}" if claim.startswith("the ") else claim


def _print_findings(findings: Sequence[Finding]) -> None:
    from lamina.explain import potential_saving
    from lamina.report.units import sentence

    for finding in findings:
        saving = potential_saving(finding)
        typer.echo(f"- {f'{saving:.1%}  ' if saving else ''}{sentence(finding.claim)}")


def _print_table(done: Explained, limit: int) -> None:
    from lamina.cli import printing
    from lamina.explain import potential_saving
    from lamina.report.findings_table import findings_table

    shown = done.findings[: limit or None]
    title = f"{done.run.target} on {done.run.environment.get('device')} (run {done.run.id})"
    rows = [(finding, potential_saving(finding)) for finding in shown]
    printing.show(findings_table(rows, title, len(done.findings) - len(shown), printing.width()))

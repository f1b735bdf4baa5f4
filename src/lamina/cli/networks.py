"""What commands that run networks share: from words to networks and workloads, from runs to what is told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lamina.cli import options
from lamina.errors import UsageError

if TYPE_CHECKING:
    from lamina.build import Target
    from lamina.record import Run
    from lamina.spec import Workload
    from lamina.spec.training import Training
    from lamina.store import Store

RATES = {"sgd": 0.05}
"""Default learning rates; 0.001 for any other optimizer."""


def networks(words: Sequence[str], set_: Sequence[str], input_size: str) -> list[tuple[Target, Workload | None]]:
    """The network of each word, with the workload that its file asks for.

    Raises:
        UsageError: there is no word, or one that names nothing.
    """
    from lamina import pipeline

    if not words:
        raise UsageError("expected a SPEC: a network such as alexnet, a file, or a recipe (see --help)")
    size = options.shape("--input-size", input_size) if input_size else None
    variables = options.pairs(set_)
    return [pipeline.find(word, variables, size) for word in words]


def grid(precision: str, batch_size: str, layout: str) -> dict[str, Any]:
    """What the options of that name ask of a workload."""
    return {
        "precision": options.allowed("--precision", precision, "precision"),
        "batch": options.counts("--batch-size", batch_size) if batch_size else [],
        "layout": options.allowed("--layout", layout, "layout"),
    }


def overridden(own: Workload | None, asked: Mapping[str, Any]) -> Workload:
    """A workload, the default one if there is none, with those settings replaced that the command line gave."""
    from lamina.spec import Workload

    given = {key: value for key, value in asked.items() if value not in ([], "", None)}
    return Workload.model_validate((own or Workload()).model_dump() | given)


def training(optimizer: str, learning_rate: float | None, **settings: Any) -> Training:
    """Settings of a training, named as their options are.

    Raises:
        UsageError: naming every option that does not fit.
    """
    from pydantic import ValidationError

    from lamina.spec.training import Training

    rate = RATES.get(optimizer, 0.001) if learning_rate is None else learning_rate
    try:
        return Training.model_validate({"optimizer": optimizer, "learning_rate": rate, **settings})
    except ValidationError as error:
        faults = (f"--{str(e['loc'][0]).replace('_', '-')}: {e['msg']}, got {e['input']!r}" for e in error.errors())
        raise UsageError("\n".join(faults)) from error


def tell(runs: Sequence[Run], database: Store, report: Path | None, form: str) -> bool:
    """Print runs, write a report of each, say where they are; whether anything failed."""
    from lamina import pipeline
    from lamina.cli import printing

    printing.print_runs(database, runs, form)
    for this in runs:
        if report is not None:
            path = report if len(runs) == 1 else report.with_stem(f"{report.stem}-{this.target}")
            typer.echo(f"report: {pipeline.report(database, this.id, path)}", err=True)
        typer.echo(f"run {this.id} is in {database.place}", err=True)
    return any(row.outcome == "failed" for this in runs for row in database.layers(this.id))

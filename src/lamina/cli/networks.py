"""What commands that run networks share: networks and workloads from arguments, and the output of runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lamina.cli import options
from lamina.errors import UsageError

if TYPE_CHECKING:
    from lamina.build import Target
    from lamina.record import Run
    from lamina.spec import Input, Workload
    from lamina.spec.training import Training
    from lamina.store import Store

RATES = {"sgd": 0.05}
"""Default learning rates; 0.001 for any other optimizer."""


def networks(
    words: Sequence[str], set_: Sequence[str], input_size: str, layers: Sequence[str] = ()
) -> list[tuple[Target, Workload | None]]:
    """The network of each SPEC, with the workload of its file.

    Raises:
        UsageError: there is no SPEC, one is unknown, or one has no layer that a pattern of ``layers`` matches.
    """
    from lamina import pipeline

    size, variables = check_networks(words, set_, input_size)
    check_layers(words, variables, layers)
    with stdout_for_results():
        return [pipeline.find(word, variables, size) for word in words]


@contextlib.contextmanager
def stdout_for_results() -> Iterator[None]:
    """What the code of a network prints goes to stderr: stdout is for results, such as ``--format json``."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def check_layers(words: Sequence[str], variables: Mapping[str, str], layers: Sequence[str]) -> None:
    """Refuse patterns that match no layer of a network whose layers are known without PyTorch.

    Raises:
        UsageError: with the nearest name.
    """
    from lamina.pipeline.described import describe, needs_torch
    from lamina.spec.layer_names import matching_layers

    for word in words if layers else ():
        if not needs_torch(word, variables):
            matching_layers(layers, [layer.name for layer in describe(word, variables).layers])


def check_networks(
    words: Sequence[str], set_: Sequence[str], input_size: str
) -> tuple[tuple[int, ...] | tuple[Input, ...] | str | None, dict[str, str]]:
    """The input size and the variables of SPECs, each of which is known; without importing PyTorch.

    Raises:
        UsageError: there is no SPEC, one is unknown, or an option is malformed.
    """
    from lamina.pipeline.described import meaning

    if not words:
        raise UsageError("expected a SPEC: a network such as alexnet, a file, or a recipe (see --help)")
    size = options.requested_inputs(input_size)
    variables = options.pairs(set_)
    meant = [meaning(word, variables) for word in words]
    if size and not any(isinstance(one, str) for one in meant):
        raise UsageError(
            f"--input-size, --input and --input-fn are for networks of packages: {', '.join(words)} "
            f"{'has' if len(words) == 1 else 'have'} inputs of {'its' if len(words) == 1 else 'their'} own"
        )
    return size, variables


def grid(precision: str, batch_size: str, layout: str) -> dict[str, Any]:
    """The grid of a workload from the options of these names."""
    return {
        "precision": options.allowed("--precision", precision, "precision"),
        "batch": options.counts("--batch-size", batch_size) if batch_size else [],
        "layout": options.allowed("--layout", layout, "layout"),
    }


def overridden(own: Workload | None, settings: Mapping[str, Any]) -> Workload:
    """A workload, by default the default one, with the settings replaced that the command line has."""
    from lamina.spec import Workload

    given = {key: value for key, value in settings.items() if value not in ([], "", None)}
    return Workload.model_validate((own or Workload()).model_dump() | given)


def training(optimizer: str, learning_rate: float | None, **settings: Any) -> Training:
    """Settings of a training run, named as their options are.

    Raises:
        UsageError: naming every option that does not fit.
    """
    from pydantic import ValidationError

    from lamina.spec.training import Training

    rate = RATES.get(optimizer, 0.001) if learning_rate is None else learning_rate
    try:
        return Training.model_validate({"optimizer": optimizer, "learning_rate": rate, **settings})
    except ValidationError as error:
        faults = (f"{_option(str(e['loc'][0]))}: {e['msg']}, got {e['input']!r}" for e in error.errors())
        raise UsageError("\n".join(faults)) from error


def _option(setting: str) -> str:
    """The option of a setting, under both names where it has two."""
    return "--learning-rate (--lr)" if setting == "learning_rate" else f"--{setting.replace('_', '-')}"


def print_and_report(
    runs: Sequence[Run], database: Store, report: Path | None, form: str, every: bool = True
) -> bool:
    """Print runs, write a report of each, and name their database; whether anything failed."""
    from lamina import pipeline
    from lamina.cli import printing

    printing.print_runs(database, runs, form, every)
    for this in runs:
        if report is not None:
            path = report if len(runs) == 1 else report.with_stem(f"{report.stem}-{this.target}")
            typer.echo(f"report: {pipeline.report(database, this.id, path)}", err=True)
        typer.echo(f"run {this.id} is in {database.place}", err=True)
    return any(row.outcome == "failed" for this in runs for row in database.layers(this.id))

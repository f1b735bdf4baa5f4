"""The command line: parse, call the pipeline, print. No logic; a command imports what it needs when it runs."""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated

import typer

from lamina import __version__
from lamina.cli import catalogue, isolated, reproduce, runs, simulate, store
from lamina.cli.apply import apply
from lamina.cli.bench import bench
from lamina.cli.compaction import compaction_engine
from lamina.cli.compare import compare
from lamina.cli.deft import deft
from lamina.cli.explain import explain
from lamina.cli.handled import begin, end_cleanly_on_sigterm, unexpected
from lamina.cli.idle import IdleCommand
from lamina.cli.profile import profile
from lamina.cli.report import report
from lamina.cli.serve import serve
from lamina.cli.sparsity import sparsity
from lamina.cli.study import study
from lamina.cli.sweep import sweep
from lamina.cli.train import train
from lamina.cli.training_gain import training
from lamina.cli.what_if import what_if

LEVELS = ("debug", "info", "warning", "error")

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="A layer-by-layer performance laboratory for deep neural networks on GPUs.",
    epilog="Example: lamina bench lenet5 --data fashion-mnist --report lenet5.html",
)
simulate.app.command("compaction-engine")(compaction_engine)
simulate.app.command("training")(training)

MEASURE, UNDERSTAND, CHANGE = "Measure", "Analyze", "Change and train"
SIMULATE, KNOW = "Simulate and reproduce", "List what there is"
app.command(rich_help_panel=MEASURE, cls=IdleCommand)(bench)
app.command(rich_help_panel=MEASURE, cls=IdleCommand)(profile)
app.add_typer(runs.app, name="runs", rich_help_panel=UNDERSTAND)
app.add_typer(store.app, name="store", rich_help_panel=UNDERSTAND)
app.command(rich_help_panel=UNDERSTAND)(report)
app.command(rich_help_panel=UNDERSTAND)(serve)
app.command(rich_help_panel=UNDERSTAND)(explain)
app.command(rich_help_panel=UNDERSTAND)(compare)
app.command(rich_help_panel=CHANGE)(study)
app.command(rich_help_panel=CHANGE)(apply)
app.command("what-if", rich_help_panel=CHANGE, cls=IdleCommand)(what_if)
app.command(rich_help_panel=CHANGE)(train)
app.command(rich_help_panel=CHANGE)(sparsity)
app.command(rich_help_panel=CHANGE)(deft)
app.add_typer(simulate.app, name="simulate", rich_help_panel=SIMULATE)
app.command(rich_help_panel=SIMULATE)(sweep)
app.add_typer(reproduce.app, name="reproduce", rich_help_panel=SIMULATE)
app.command(rich_help_panel=KNOW)(catalogue.models)
app.command(rich_help_panel=KNOW)(catalogue.methods)
app.add_typer(catalogue.recipes_app, name="recipes", rich_help_panel=KNOW)
app.command(rich_help_panel=KNOW)(catalogue.counters)
app.command("convert-config", rich_help_panel=KNOW)(catalogue.convert_config)
app.command(rich_help_panel=KNOW)(catalogue.env)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lamina {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    log: Annotated[
        str,
        typer.Option(
            "--log", envvar="LAMINA_LOG", help="Least severe messages that are shown: debug, info, warning, error."
        ),
    ] = "warning",
) -> None:
    if log.lower() not in LEVELS:
        raise typer.BadParameter(f"expected one of {', '.join(LEVELS)}, got {log!r}", param_hint="--log")
    logging.basicConfig(level=log.upper(), format="lamina: %(message)s")


def main() -> None:
    """Entry point of the ``lamina`` command."""
    begin()
    sys.path.insert(0, os.getcwd())  # so that mynet:build finds mynet.py in the working directory
    isolated.enabled = True
    end_cleanly_on_sigterm()
    try:
        app()
    except Exception as error:  # outside of any command
        sys.exit(unexpected(error))

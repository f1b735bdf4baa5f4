"""``lamina simulate``: hardware that can be described, and how far its simulation is from the real thing."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.errors import MissingError

app = typer.Typer(no_args_is_help=True, help="Simulate a GPU's memory hierarchy; validate it against measured runs.")


@app.command("validate")
@handled
def validate(
    file: Annotated[Path, typer.Argument(help="CSV of MGPUSim runs of the dense kernel, with its counters.")],
    format_: Annotated[str, typer.Option("--format", help="table or json, on stdout.")] = "table",
) -> None:
    """Simulate every run of a file and compare times and counts with what was measured.

    Exit code 1 if a count that must agree does not.
    """
    from rich.progress import Progress

    from lamina.cli import printing
    from lamina.cli.watching import Watcher
    from lamina.report.table import validation_table

    hierarchy = _hierarchy()
    (form,) = options.choices("--format", format_, ("table", "json"))
    rows = hierarchy.read_reference(file)
    with Progress(console=Watcher().console, transient=True) as bar:
        task = bar.add_task("simulating", total=1.0)

        def show(share: float) -> None:
            bar.update(task, completed=share)

        done = hierarchy.validate(rows, progress=show)
    document = done.to_dict()
    if form == "json":
        typer.echo(json.dumps(document, indent=1))
    else:
        printing.show(validation_table(document, printing.width()))
    if not done.held:
        raise typer.Exit(1)


@app.command("devices")
@handled
def devices(
    name: Annotated[str, typer.Argument(help="Show this device's settings; without a name, list them.")] = "",
) -> None:
    """List the described devices, or show one."""
    hierarchy = _hierarchy()

    if not name:
        for each in hierarchy.presets():
            typer.echo(each)
        return
    for key, value in hierarchy.preset(name).settings().items():
        typer.echo(f"{key} = {value}")


def _hierarchy() -> ModuleType:
    """The simulator, whose compiler is an extra."""
    try:
        return import_module("lamina.simulate.hierarchy")
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        raise MissingError("simulating needs numba, which is not installed: pip install 'lamina[sim]'") from error

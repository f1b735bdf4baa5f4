"""Commands that list what there is: networks, methods, recipes, counters, configuration files, this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.errors import UsageError

recipes_app = typer.Typer(no_args_is_help=True, help="Shipped workload files: list them, read them, copy them out.")

RecipeArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="A name of 'lamina recipes ls'; its folder may be left out.")
]


@recipes_app.command("ls")
@handled
def list_recipes(format_: options.FormatOption = "table") -> None:
    """List the recipes.

    Example:

        lamina recipes ls
    """
    from lamina import recipes
    from lamina.cli import printing

    (form,) = options.choices("--format", format_, options.FORMATS)
    printing.show_list([{"recipe": one.name, "summary": one.summary} for one in recipes.ls()], form)


@recipes_app.command("show")
@handled
def show_recipe(name: RecipeArgument) -> None:
    """Print a recipe.

    Example:

        lamina recipes show models/lenet5
    """
    from lamina import recipes

    typer.echo(recipes.show(name), nl=False)


@recipes_app.command("cp")
@handled
def copy_recipe(
    name: RecipeArgument,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the copy.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Copy a recipe into a folder, to edit it.

    Example:

        lamina recipes cp models/lenet5 .
    """
    from lamina import recipes

    typer.echo(recipes.cp(name, folder, force))


@handled
def models(format_: options.FormatOption = "table") -> None:
    """List the networks of the zoo.

    Example:

        lamina models
    """
    from lamina.cli import printing
    from lamina.spec import show
    from lamina.spec.zoo import ZOO

    (form,) = options.choices("--format", format_, options.FORMATS)
    rows = [
        {
            "network": entry.name,
            "input": show(entry.input),
            "classes": entry.classes,
            "summary": entry.summary,
            "source": entry.source,
        }
        for entry in ZOO.values()
    ]
    printing.show_list(rows, form)


@handled
def methods(format_: options.FormatOption = "table") -> None:
    """List the implementations for --impl, with the options of each and their defaults.

    In Python, lamina.convert(model, config) takes the configuration class with the same options.

    Example:

        lamina methods
    """
    from dataclasses import MISSING, fields

    from lamina.accelerate.registry import CELLS, config_class
    from lamina.cli import printing
    from lamina.spec import METHODS

    (form,) = options.choices("--format", format_, options.FORMATS)
    rows = []
    for info in METHODS.values():
        known = fields(config_class(info.name)) if info.name in CELLS else ()
        shown = [each.name if each.default is MISSING else f"{each.name}={each.default}" for each in known]
        row = {"implementation": info.name, "configuration": info.config, "summary": info.summary, "options": shown}
        rows.append(row)
    printing.show_list(rows, form)


@handled
def counters(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SET|METRIC]...", help="Sets (core, memory, stalls, full) or metrics."),
    ] = None,
    format_: options.FormatOption = "table",
) -> None:
    """List hardware metrics for 'lamina profile --counters': unit, meaning, sets, and nvprof's names for figures.

    Example:

        lamina counters stalls
    """
    from lamina.cli import printing
    from lamina.measure import counters as known

    (form,) = options.choices("--format", format_, options.FORMATS)
    wanted = known.select(names or ["full"])
    rows = [
        {"metric": name, "unit": metric.unit, "sets": list(metric.sets), "summary": metric.meaning}
        for name, metric in ((name, known.metric(name)) for name in wanted)
    ]
    figures = [
        {"nvprof": list(figure.aliases), "unit": figure.unit, "from": str(figure.formula)}
        for figure in known.DERIVED
        if set(figure.formula.metrics) <= set(wanted)
    ]
    printing.show_list(rows, form)
    if form == "table":
        printing.show_list(figures, form)
        for name, what in known.SETS.items():
            typer.echo(f"{name}: {what}")


@handled
def convert_config(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .dnnmark or .dnntemplate file.")],
    set_: options.SetOption = [],  # noqa: B006  (typer copies it)
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File; default stdout.")] = None,
) -> None:
    """Rewrite a DNNMark configuration as TOML. Notes on keys without effect go to stderr.

    Example:

        lamina convert-config alexnet.dnnmark --output alexnet.toml
    """
    from lamina.spec.files import read
    from lamina.spec.toml import write_toml

    network, workload = read(file, options.pairs(set_))
    text = write_toml(network, workload)
    for note in network.remarks:
        typer.echo(f"note: {note}", err=True)
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {error.strerror}") from error


@handled
def env(
    device: options.DeviceOption = "auto",
    roofs: Annotated[
        bool, typer.Option("--roofs", help="Also measure, or look up, the peaks of the roofline.")
    ] = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure the peaks again.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """Show the machine and the software versions, as stored with every run.

    Example:

        lamina env --roofs --device cuda
    """
    from dataclasses import asdict

    chosen = options.device_name(device)

    from lamina import measure

    facts = asdict(measure.environment(chosen))
    if roofs or refresh:
        facts["roofs"] = asdict(measure.roofs(chosen, options.cache_folder(), refresh))
    if json_:
        typer.echo(json.dumps(facts, indent=1))
        return
    width = max(map(len, facts))
    for key, value in facts.items():
        typer.echo(f"{key:{width}}  {value if value is not None else '-'}")

"""``lamina apply``: a network by a plan of ``lamina study``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.cli.networks import check_networks, networks
from lamina.errors import UsageError

if TYPE_CHECKING:
    from lamina.pipeline.apply.tried import Tried
    from lamina.spec.plan import Plan

FORMATS = ("table", "json")


@handled
def apply(
    spec: options.OneSpecArgument,
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="plan.toml of 'lamina study', or the folder of a study.")
    ],
    weights: Annotated[
        Path | None,
        typer.Option("--weights", help="Trained weights: a safetensors state dict or a checkpoint of lamina train."),
    ] = None,
    classes: Annotated[
        int | None, typer.Option("--classes", min=1, help="Classes of the network, where they are not its own.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", "-b", min=1, help="Samples of a step.", show_default="the plan's")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail where a layer of the plan does not fit.")] = False,
    time: Annotated[bool, typer.Option("--time/--no-time", help="Time a step before and after.")] = True,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Save the network with its plan in this folder.")
    ] = None,
    seed: options.SeedOption = 0,
    device: options.DeviceOption = "auto",
    set_: options.SetOption = [],  # noqa: B006  (typer copies it)
    input_size: options.InputSizeOption = "",
    input_: options.InputOption = [],  # noqa: B006  (typer copies it)
    input_fn: options.InputFnOption = "",
    format_: Annotated[str, typer.Option("--format", help="table or json, on stdout.")] = "table",
) -> None:
    """Run a network by a plan: each layer by its method, and the whole in the plan's precision, layout and mode.

    Layers of the plan that the network does not have, or has in another size, stay as they are; each is listed with
    the reason. A network with the weights of the study gets the weights that the study fitted.

    In Python: model = lamina.apply(model, "plan.toml").

    Exit codes: 0 done, 1 failed, 2 usage, 3 device or package missing, 70 internal error, 130 interrupted.

    Examples:

        lamina apply lenet5 lenet5-study/plan.toml

        lamina apply mymodels:net plan.toml --input-size 3x64x64 --device cuda --output net-by-plan
    """
    input_size = options.inputs(input_size, input_, input_fn)
    check_networks([spec], set_, input_size)
    options.writable("--output", output, folder=True)
    options.device(device)
    (form,) = options.choices("--format", format_, FORMATS)
    found = options.whole_plan(plan)
    assert found is not None
    if weights is not None and not weights.is_file():
        raise UsageError(f"--weights: expected a file, got {weights}")

    from lamina.pipeline.apply.tried import try_plan
    from lamina.pipeline.deft.recipe_files import how_to_load

    ((target, _),) = networks([spec], set_, input_size)
    tried = try_plan(
        target,
        found,
        plan,
        weights=weights,
        classes=classes,
        batch=batch_size,
        seed=seed,
        device=options.device_name(device),
        strict=strict,
        timed=time,
        output=output,
    )
    if form == "json":
        typer.echo(json.dumps(_document(tried), indent=1))
    else:
        _print(tried, found)
    if output is not None:
        typer.echo(f"saved in {output}; {how_to_load(output)}", err=True)


def _document(tried: Tried) -> dict[str, Any]:
    return {
        "replaced": dict(tried.done.replaced),
        "refused": dict(tried.done.refused),
        "remarks": list(tried.done.remarks),
        "before_us": tried.before.median_us if tried.before else None,
        "after_us": tried.after.median_us if tried.after else None,
    }


def _print(tried: Tried, plan: Plan) -> None:
    from lamina.cli import printing
    from lamina.report import units
    from lamina.report.plain_table import Line, plain_table

    lines = []
    for one in plan.layers:
        refusal = tried.done.refused.get(one.name, "")
        ran = tried.done.replaced.get(one.name, "dense")
        saved = f"{one.dense_us / one.time_us:.2f}x" if one.time_us and one.dense_us and ran != "dense" else ""
        lines.append(Line([one.name, one.type, ran, saved, refusal], "red" if refusal else None))
    headings = ["layer", "type", "method", "in the plan", "why not"]
    if not tried.done.refused:
        headings, lines = headings[:-1], [Line(line.cells[:-1], line.style) for line in lines]
    title = f"{plan.network}: {len(tried.done.replaced)} of {len(plan.layers)} layers by another method"
    width = printing.width()
    printing.show(plain_table(headings, lines, numeric=["in the plan"], title=title, width=width, dispensable=["type"]))
    for remark in tried.done.remarks:
        typer.echo(f"note: {remark}")
    if tried.before and tried.after:
        kind = "training step" if plan.goal == "train" else "forward pass"
        speedup = tried.before.median_us / tried.after.median_us
        before, after = (units.duration(one.median_us) for one in (tried.before, tried.after))
        typer.echo(f"{kind}: {before} in eager mode and fp32, {after} by the plan: {speedup:.2f}x")

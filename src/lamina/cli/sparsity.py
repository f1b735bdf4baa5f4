"""``lamina sparsity``: the density of a network's activation maps while it trains."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.cli.networks import networks, training
from lamina.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from lamina.accelerate.training.sparsity_monitor import Observation, Pace, Parameters
    from lamina.pipeline.sparsity import SparsityProfile


@handled
def sparsity(
    spec: options.OneSpecArgument,
    data: options.DataOption,
    iterations: Annotated[int, typer.Option("--iterations", "-n", min=1, help="Training iterations.")] = 1000,
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", min=1, help="Batch size.")] = 64,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Sample every map at every iteration.")] = False,
    module: Annotated[
        list[str] | None,
        typer.Option("--module", help="Monitor this module's outputs. Repeatable; default every ReLU, or activation."),
    ] = None,
    masks: Annotated[
        Path | None, typer.Option("--masks", help="Also write masks of zeros in the inputs of convolutions (.npz).")
    ] = None,
    mask_every: Annotated[
        int | None, typer.Option("--mask-every", min=1, help="Iterations between masks.", show_default="the last one")
    ] = None,
    mask_images: Annotated[int, typer.Option("--mask-images", min=1, help="Images of a batch in a mask.")] = 4,
    mask_layer: Annotated[
        list[str] | None,
        typer.Option("--mask-layer", help="Record this convolution, or those of a pattern. Repeatable; default all."),
    ] = None,
    mask_gradients: Annotated[
        bool, typer.Option("--mask-gradients", help="Also record the gradients of the convolutions' outputs.")
    ] = False,
    history: Annotated[int, typer.Option("--history", help="Measurements of each map that are kept.")] = 10,
    sparse_enough: Annotated[
        float, typer.Option("--sparse-enough", help="Sparsity below which a map is no longer monitored.")
    ] = 0.3,
    stability: Annotated[
        float, typer.Option("--stability", help="A map whose density changes by less is stable.")
    ] = 0.02,
    period: Annotated[int, typer.Option("--period", help="Iterations between samples of a map, at first.")] = 500,
    duration: Annotated[int, typer.Option("--duration", help="Iterations that one sample covers.")] = 5,
    hibernation: Annotated[
        int, typer.Option("--hibernation", help="Iterations between samples when all maps are stable.")
    ] = 10_000,
    schedule: Annotated[
        list[str],
        typer.Option(
            "--schedule",
            metavar="PATTERN=SCHEDULE",
            help="Schedule of the maps whose names fit, in iterations: [bold]every:10[/bold]; "
            "[bold]adaptive:10-1000[/bold], longer while the density changes slowly; or the published "
            "[bold]spartan:100[/bold], which doubles and hibernates. :DURATION may follow. Repeatable.",
        ),
    ] = [],  # noqa: B006  (typer copies it)
    optimizer: Annotated[str, typer.Option("--optimizer", help="sgd, adam, adamw.")] = "sgd",
    learning_rate: Annotated[
        float | None,
        typer.Option("--learning-rate", "--lr", help="Default 0.05 for sgd, 0.001 for adam and adamw."),
    ] = None,
    precision: Annotated[str, typer.Option("--precision", help="fp32, tf32; bf16 and fp16 by autocast.")] = "fp32",
    seed: options.SeedOption = 0,
    device: options.DeviceOption = "auto",
    set_: options.SetOption = [],  # noqa: B006  (typer copies it)
    input_size: options.InputSizeOption = "",
    input_: options.InputOption = [],  # noqa: B006  (typer copies it)
    input_fn: options.InputFnOption = "",
    store: options.StoreOption = "",
    format_: options.FormatOption = "table",
) -> None:
    """Train a network and measure how many activations are zero.

    Each observation goes to the trace database. --format csv or json prints them; a table summarizes each map.

    Examples:

        lamina sparsity alexnet --data DIR --iterations 2000 --masks alexnet.npz

        lamina sparsity alexnet --data DIR --schedule 'features.*=every:10' --schedule 'classifier.*=adaptive:20-500'
    """
    input_size = options.inputs(input_size, input_, input_fn)
    from lamina.accelerate.training.sparsity_monitor.parameters import Parameters

    options.choices("--format", format_, options.FORMATS)
    parameters = Parameters(history, sparse_enough, stability, period, duration, hibernation)
    schedules = _schedules(schedule, parameters, exhaustive)
    settings = training(optimizer, learning_rate, batch=batch_size, precision=precision, seed=seed)
    options.dataset(data)
    options.writable("--masks", masks)
    options.device(device)
    ((target, _),) = networks([spec], set_, input_size)

    from lamina.cli.watching import Watcher
    from lamina.pipeline.sparsity import Masks, sparsity
    from lamina.store import open_store

    with Watcher() as watch, open_store(options.store_url(store)) as database:
        profile = sparsity(
            target,
            data,
            settings,
            database,
            iterations=iterations,
            parameters=parameters,
            schedules=schedules,
            exhaustive=exhaustive,
            modules=module,
            masks=Masks(masks, mask_every or iterations, mask_images, tuple(mask_layer or ["*"]), mask_gradients)
            if masks
            else None,
            device=options.device_name(device),
            command=options.command_line(),
            watch=watch,
        )
    _print(profile, target.name, format_)


def _schedules(texts: list[str], parameters: Parameters, exhaustive: bool) -> dict[str, Pace]:
    """Schedules by pattern of map names.

    Raises:
        UsageError: a text is no schedule.
    """
    from lamina.accelerate.training.sparsity_monitor.parameters import Pace

    if texts and exhaustive:
        raise UsageError("--schedule: --exhaustive samples every map at every iteration; leave one of them out")
    found = {}
    for text in texts:
        pattern, equals, written = text.partition("=")
        if not (equals and pattern.strip()):
            raise UsageError(f"--schedule: expected PATTERN=SCHEDULE such as 'features.*=every:10', got {text!r}")
        try:
            pace = Pace.parse(written, parameters.duration)
            parameters.check(pace)
        except UsageError as error:
            raise UsageError(f"--schedule {pattern}: {error}") from error
        found[pattern.strip()] = pace
    return found


def _print(profile: SparsityProfile, name: str, form: str) -> None:
    from lamina.cli import printing

    rows = [_row(observation) | {"run": profile.run_id} for observation in profile.observations]
    if form == "table":
        printing.show(_table(profile, f"{name} (run {profile.run_id})"))
    elif form == "json":
        json.dump(rows, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        table = csv.DictWriter(sys.stdout, list(rows[0]) if rows else [])
        table.writeheader()
        table.writerows(rows)


def _row(it: Observation) -> dict[str, Any]:
    """One observation, flat."""
    unions = {f"union_density_{width}": share for width, share in it.union_density.items()}
    row = {"map": it.name, "iteration": it.iteration, "channels": it.rows, "columns": it.columns, "density": it.density}
    counts = {"dead_channels": it.dead_channels, "longest_column": it.longest_column}
    return row | unions | {"clustering": it.clustering} | counts


def _table(profile: SparsityProfile, title: str) -> Table:
    """One line a map."""
    from lamina.cli import printing
    from lamina.report.plain_table import Line, plain_table

    headings = [
        "map",
        "observed",
        "density",
        "last",
        "u(16)",
        "u(64)",
        "clustering",
        "dead",
        "longest",
        "period",
        "why",
    ]
    lines = []
    for it in profile.maps:
        seen = profile.of(it.name)
        if not seen:
            continue
        last, densities = seen[-1], [each.density for each in seen]
        unions = [f"{last.union_density[width]:.3f}" for width in (16, 64)]
        dead, longest = f"{last.dead_channels} of {last.rows}", f"{last.longest_column} of {last.rows}"
        cells = [it.name, str(len(seen)), f"{min(densities):.3f} .. {max(densities):.3f}", f"{last.density:.3f}"]
        lines.append(Line([*cells, *unions, f"{last.clustering:.2f}", dead, longest, str(it.period), it.why]))
    states = sorted({str(it.state) for it in profile.maps})
    caption = [f"state at the end: {', '.join(states)}"] if states else []
    return plain_table(
        headings,
        lines,
        numeric=headings[1:10],
        title=title,
        caption=caption,
        width=printing.width(),
        dispensable=("why", "longest", "u(64)", "dead"),
    )

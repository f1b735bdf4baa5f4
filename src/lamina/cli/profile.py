"""``lamina profile``: every kernel and hardware counter of a network, by layer and phase."""

from __future__ import annotations

from typing import Annotated

import typer

from lamina.cli import options
from lamina.cli.bench import overridden
from lamina.cli.handled import handled
from lamina.errors import UsageError


@handled
def profile(
    spec: options.SpecArgument = None,
    inference: Annotated[bool, typer.Option("--inference", help="Forward only, without training's behaviour.")] = False,
    counters: Annotated[
        str,
        typer.Option(
            "--counters",
            help="Hardware counters by Nsight Compute: none, core, memory, stalls, full, or names of metrics "
            "(see 'lamina counters'). Each runs the iteration again, once for every pass.",
        ),
    ] = "none",
    precision: options.PrecisionOption = "",
    batch_size: options.BatchOption = "",
    layout: options.LayoutOption = "",
    device: options.DeviceOption = "auto",
    data: options.DataOption = "",
    repeat: Annotated[int | None, typer.Option("--repeat", min=1, help="Iterations; default 10.")] = None,
    autotune: Annotated[
        bool,
        typer.Option("--autotune", help="Let the library time its algorithms first; counters may then not fit."),
    ] = False,
    check: options.CheckOption = True,
    seed: options.SeedOption = 0,
    set_: options.SetOption = [],  # noqa: B006  (typer copies it)
    input_size: options.InputSizeOption = "",
    store: options.StoreOption = "",
    resume: options.ResumeOption = False,
    report: options.ReportOption = None,
    format_: options.FormatOption = "table",
    iterate: Annotated[bool, typer.Option("--iterate", hidden=True)] = False,
) -> None:
    """Profile a network: one training iteration, or one inference, kernel by kernel.

    Each kernel gets the layer and the phase that launched it, joined by the driver's correlation id; how much of
    the device's time found a home is printed, and what did not is listed. Counters come from a second run of the
    same iteration; where its kernels differ from the timed ones they are refused. Everything goes to the trace
    database: ask it with 'lamina explain', 'lamina compare', 'lamina report' and 'lamina runs sql'.

    Exit codes: 0 done, 1 a layer failed, 2 usage, 3 device or tool missing, 130 interrupted.

    Examples:

        lamina profile alexnet --batch-size 16,64,128

        lamina profile resnet50 --batch-size 32 --precision bf16 --counters core

        lamina profile gpt-block --inference --counters full --report gpt.html
    """
    from lamina import pipeline
    from lamina.spec import Phase, Workload

    options.choices("--format", format_, options.FORMATS)
    if not spec:
        raise UsageError("expected a SPEC: a network such as alexnet, a file, or a recipe (see --help)")
    metrics = pipeline.metrics(options.split(counters))
    size = options.shape("--input-size", input_size) if input_size else None
    found = [pipeline.find(word, options.pairs(set_), size) for word in spec]
    asked = {
        "phases": [Phase.FORWARD] if inference else [],
        "precision": options.allowed("--precision", precision, "precision"),
        "batch": options.counts("--batch-size", batch_size) if batch_size else [],
        "layout": options.allowed("--layout", layout, "layout"),
        "data": data,
        "repeat": repeat,
        "seed": seed,
        "check": check,
    }
    how = pipeline.Options(training=not inference, autotune=autotune)
    works = [
        overridden(own or Workload(), asked).model_copy(update={"device": options.device_name(device)})
        for _, own in found
    ]
    if iterate:
        pipeline.iterate(found[0][0], works[0], how, lambda event: typer.echo(event))
        return

    from lamina.cli import printing
    from lamina.cli.again import Again
    from lamina.cli.watching import Watcher
    from lamina.store import open_store

    with open_store(options.store_place(store)) as database:
        runs = []
        with Watcher() as watch:
            if cost := pipeline.passes(options.split(counters)):
                watch.say(f"counters: {len(metrics)} metrics, about {cost} replays of every kernel on this kind of GPU")
            for word, (target, _), workload in zip(spec, found, works, strict=True):
                for remark in target.remarks:
                    watch.say(f"{target.name}: {remark}")
                runs.append(
                    pipeline.profile(
                        target,
                        workload,
                        database,
                        cache=options.cache_folder(),
                        options=how,
                        counters=metrics,
                        replay=Again(word, workload, how, set_, input_size).iterate,
                        command=options.command_line(),
                        resume=resume,
                        watch=watch,
                    )
                )
        printing.print_runs(database, runs, format_)
        for this in runs:
            if report is not None:
                path = report if len(runs) == 1 else report.with_stem(f"{report.stem}-{this.target}")
                typer.echo(f"report: {pipeline.report(database, this.id, path)}", err=True)
            typer.echo(f"run {this.id} is in {database.place}", err=True)
        failed = any(row.outcome == "failed" for this in runs for row in database.layers(this.id))
    if failed:
        raise typer.Exit(1)

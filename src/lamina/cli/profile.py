"""``lamina profile``: every kernel and hardware counter of a network, by layer and phase."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.cli.idle import WaitIdleOption, wait
from lamina.cli.isolated import Progress, isolated, surviving
from lamina.cli.networks import grid, networks, overridden, print_and_report, stdout_for_results


@handled
def profile(
    spec: options.SpecArgument = None,
    impl: options.ImplOption = "",
    plan: options.PlanOption = None,
    layer: options.LayerOption = [],  # noqa: B006  (typer copies it)
    inference: Annotated[bool, typer.Option("--inference", help="Only the forward pass, in evaluation mode.")] = False,
    counters: Annotated[
        str,
        typer.Option(
            "--counters",
            help="Hardware counters by Nsight Compute: none, core, memory, stalls, full, or names of metrics "
            "(see 'lamina counters'). Each pass runs the iteration again.",
        ),
    ] = "none",
    energy: Annotated[
        float,
        typer.Option(
            "--energy", min=0, help="Seconds for which each phase is repeated to measure its energy, such as 0.5."
        ),
    ] = 0.0,
    detail_batch: Annotated[
        str, typer.Option("--detail-batch", help="Read counters and measure energy at these batch sizes only.")
    ] = "",
    precision: options.PrecisionOption = "",
    batch_size: options.BatchOption = "",
    layout: options.LayoutOption = "",
    device: options.DeviceOption = "auto",
    data: options.DataOption = "",
    repeat: Annotated[int | None, typer.Option("--repeat", min=1, help="Iterations; default 10.")] = None,
    autotune: Annotated[
        bool,
        typer.Option("--autotune", help="Let the library time its algorithms first; counters may then be refused."),
    ] = False,
    check: options.CheckOption = True,
    seed: options.SeedOption = 0,
    set_: options.SetOption = [],  # noqa: B006  (typer copies it)
    input_size: options.InputSizeOption = "",
    input_: options.InputOption = [],  # noqa: B006  (typer copies it)
    input_fn: options.InputFnOption = "",
    store: options.StoreOption = "",
    resume: options.ResumeOption = False,
    wait_idle: WaitIdleOption = 0,
    report: options.ReportOption = None,
    format_: options.FormatOption = "table",
    every: options.AllOption = False,
    iterate: Annotated[bool, typer.Option("--iterate", hidden=True)] = False,
) -> None:
    """Profile a network: one training iteration, or one inference, kernel by kernel.

    Each kernel is attributed to the layer and the phase that launched it, by the driver's correlation id. The share
    of GPU time that is attributed is printed, and other kernels are listed. Counters come from a second run of the
    same iteration; they are refused where its kernels differ from the timed ones. Everything goes to the trace
    database, for 'lamina explain', 'lamina compare', 'lamina report' and 'lamina runs sql'.

    With --impl, layers that the implementation does not support run densely, and their rows say why. With --layer,
    the whole iteration runs; only these layers have rows, kernels and counters, and only these are converted.

    Exit codes: 0 done, 1 a layer failed, 2 usage, 3 device or tool missing, 70 internal error, 130 interrupted.

    Examples:

        lamina profile alexnet --batch-size 16,64,128

        lamina profile resnet50 --batch-size 32 --precision bf16 --counters core

        lamina profile alexnet --batch-size 64,128 --counters full --detail-batch 128 --energy 0.5

        lamina profile alexnet --impl circulant\\[block_size=64] --layer 'classifier.*' --device cuda

        lamina profile gpt2_block --inference --counters full --report gpt.html
    """
    input_size = options.inputs(input_size, input_, input_fn)
    from lamina.spec import Phase

    options.choices("--format", format_, options.FORMATS)
    options.writable("--report", report)
    options.device(device)
    metrics = options.metrics(counters)
    words = spec or []
    planned = options.plan(plan)
    settings: dict[str, Any] = planned | {
        "impl": options.implementations(impl),
        "layers": options.layer_patterns(layer),
        "phases": [Phase.FORWARD] if inference else [],
        **{key: value for key, value in grid(precision, batch_size, layout).items() if value or key not in planned},
        "data": options.dataset(data),
        "repeat": repeat,
        "seed": seed,
        "check": check,
    }
    progress = Progress() if iterate else isolated()
    found = networks(words, set_, input_size, settings["layers"])

    from lamina import pipeline

    detailed = tuple(options.counts("--detail-batch", detail_batch)) if detail_batch else ()
    how = pipeline.Options(training=not inference, autotune=autotune, energy_s=energy, detail_batch=detailed)
    chosen = options.device_name(device)
    works = [overridden(own, settings).model_copy(update={"device": chosen}) for _, own in found]
    if iterate:
        pipeline.iterate(found[0][0], works[0], how, lambda event: typer.echo(event))
        return

    from lamina.cli.again import Again
    from lamina.cli.watching import Watcher
    from lamina.store import open_store

    with surviving(progress), open_store(options.store_url(store)) as database:
        runs = [database.run(run_id) for run_id in progress.finished]
        with Watcher(progress.working) as watch, stdout_for_results():
            wait(wait_idle, chosen, watch.say)
            if cost := pipeline.passes(options.split(counters)):
                watch.say(f"counters: {len(metrics)} metrics, about {cost} replays of each kernel on such a GPU")
            for word, (target, _), workload in [*zip(words, found, works, strict=True)][len(runs) :]:
                for note in target.remarks:
                    watch.say(f"{target.name}: {note}")
                runs.append(
                    pipeline.profile(
                        target,
                        workload,
                        database,
                        cache=options.cache_folder(),
                        options=how,
                        counters=metrics,
                        replay=Again(word, workload, how, set_, input_size, str(plan or "")).iterate,
                        command=options.command_line(),
                        resume=resume or bool(progress.lost),
                        lost=progress.lost,
                        watch=watch,
                    )
                )
                progress.finish(runs[-1].id)
        failed = print_and_report(runs, database, report, format_, every)
    if failed:
        raise typer.Exit(1)

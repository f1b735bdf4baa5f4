"""``lamina bench``: measure networks layer by layer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from lamina.cli import options
from lamina.cli.allreduce import ALLREDUCE, exchange, require_exchange
from lamina.cli.handled import handled
from lamina.cli.idle import WaitIdleOption, wait
from lamina.cli.isolated import Progress, isolated, surviving
from lamina.cli.networks import check_networks, grid, networks, overridden, print_and_report, stdout_for_results
from lamina.errors import UsageError

if TYPE_CHECKING:
    from lamina.build import Target
    from lamina.pipeline.selected import How
    from lamina.record import Run
    from lamina.spec import Workload
    from lamina.store import Store


@handled
def bench(
    spec: options.SpecArgument = None,
    model: Annotated[list[str] | None, typer.Option("--model", "-m", help="The same as SPEC. Repeatable.")] = None,
    impl: options.ImplOption = "",
    select: Annotated[
        str,
        typer.Option(
            "--select",
            help="none: run --impl wherever it is supported. measure: time each layer by --impl and dense, and keep "
            "the faster. model: the same by the times of cost models.",
        ),
    ] = "none",
    plan: options.PlanOption = None,
    layer: options.LayerOption = [],  # noqa: B006  (typer copies it)
    phase: Annotated[
        str,
        typer.Option(
            "--phase",
            help="Phases, between commas: forward, backward_data, backward_weight; default all. Or allreduce: the "
            "exchange of gradients between --processes.",
        ),
    ] = "",
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            help="With --phase allreduce, which starts them; default 2: one for each GPU by NCCL, or by gloo.",
        ),
    ] = None,
    precision: options.PrecisionOption = "",
    batch_size: options.BatchOption = "",
    device: options.DeviceOption = "auto",
    layout: options.LayoutOption = "",
    data: options.DataOption = "",
    repeat: Annotated[
        int | None,
        typer.Option("--repeat", min=1, help="Samples of each timing; default: until their spread is below 2 %."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=0.001, help="Limit of one timing, in seconds; default 0.5."),
    ] = None,
    clock: Annotated[
        str,
        typer.Option(
            "--clock",
            help="Clocks, between commas: cupti (kernel time), events, graph, wall (with launch overhead); "
            "on the CPU: cpu. Default on CUDA: cupti, and wall for the whole step.",
        ),
    ] = "",
    l2: Annotated[
        str,
        typer.Option("--l2", help="State of the L2 cache before each call, between commas: warm, cold; default warm."),
    ] = "",
    seed: options.SeedOption = 0,
    check: options.CheckOption = True,
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
    memory: Annotated[
        bool, typer.Option("--memory", help="Print which tensors of the network share a buffer; measure nothing.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved layers with their costs; measure nothing.")
    ] = False,
) -> None:
    """Measure networks layer by layer: the forward pass and both backward passes of each layer.

    Each result is compared with float64 before it is timed. Rows are stored as they are measured, so that an
    interrupted run continues with --resume. Options override those of a workload file.

    Exit codes: 0 done, 1 a layer failed, 2 usage, 3 device or tool missing, 70 internal error, 130 interrupted.

    Examples:

        lamina bench lenet5 --data fashion-mnist

        lamina bench alexnet --batch-size 128 --precision fp32,tf32,bf16 --device cuda

        lamina bench vgg16 --impl dense,sparse,circulant\\[block_size=64] --phase forward --device cuda

        lamina bench alexnet --impl circulant --select measure --clock graph --device cuda

        lamina bench alexnet --plan alexnet-study/plan.toml --device cuda

        lamina bench vgg16 --phase allreduce --impl dense,circulant\\[block_size=64] --processes 2 --device cuda

        lamina bench my.dnntemplate --set N=64 --dry-run
    """
    input_size = options.inputs(input_size, input_, input_fn)
    options.choices("--format", format_, options.FORMATS)
    options.writable("--report", report)
    options.choices("--select", select, ("none", "measure", "model"))
    words = [*(spec or []), *(model or [])]
    options.device(device)
    require_exchange(phase, processes, {"--data": data, "--clock": clock, "--l2": l2, "--plan": plan})
    if impl and plan is not None:
        raise UsageError("--impl and --plan: expected one of them")
    patterns = options.layer_patterns(layer)
    planned = options.plan(plan)
    settings = planned | {
        "impl": options.implementations(impl),
        "layers": patterns,
        "phases": options.allowed("--phase", phase, "phases") if phase != ALLREDUCE else [],
        **{key: value for key, value in grid(precision, batch_size, layout).items() if value or key not in planned},
        "data": options.dataset(data),
        "clocks": options.clocks(clock),
        "l2": options.allowed("--l2", l2, "l2"),
        "repeat": repeat,
        "seconds": seconds,
        "seed": seed,
        "check": check,
    }
    if select != "none" and not impl and plan is None:
        _require_methods(words, options.pairs(set_))
    if dry_run:
        _print_layers(words, set_, input_size, settings, format_)
        if not memory:
            return
    progress = Progress() if memory else isolated()
    found = networks(words, set_, input_size, patterns)
    workloads = [overridden(own, settings) for _, own in found]
    targets = [target for target, _ in found]
    if memory:
        _print_memory(targets, workloads)
        return

    from lamina.store import open_store

    chosen = options.device_name(device)
    if phase == ALLREDUCE:
        with open_store(options.store_url(store)) as database:
            exchanged = exchange(targets, workloads, chosen, processes or 2, database, resume)
            print_and_report(exchanged, database, report, format_, every)
        return
    with surviving(progress), open_store(options.store_url(store)) as database:
        runs = _measure(targets, workloads, chosen, database, resume, cast("How", select), wait_idle, progress)
        failed = print_and_report(runs, database, report, format_, every)
    if failed:
        raise typer.Exit(1)


def _require_methods(words: Sequence[str], variables: Mapping[str, str]) -> None:
    """Refuse a selection where no network has an implementation to select."""
    from lamina.pipeline.described import selectable

    if words and not any(selectable(word, variables) for word in words):
        raise UsageError("--select needs --impl: the implementations to select from, such as circulant")


def _measure(
    targets: Sequence[Target],
    workloads: Sequence[Workload],
    device: str,
    database: Store,
    resume: bool,
    select: How,
    wait_idle: float,
    progress: Progress,
) -> list[Run]:
    """Measure what no earlier process of this command has finished, and answer all runs."""
    from lamina import pipeline
    from lamina.cli.watching import Watcher

    runs = [database.run(run_id) for run_id in progress.finished]
    with Watcher(progress.working) as watch, stdout_for_results():
        wait(wait_idle, device, watch.say)
        for target, workload in [*zip(targets, workloads, strict=True)][len(runs) :]:
            for note in target.remarks:
                watch.say(f"{target.name}: {note}")
            runs.append(
                pipeline.bench(
                    target,
                    workload.model_copy(update={"device": device}),
                    database,
                    cache=options.cache_folder(),
                    command=options.command_line(),
                    resume=resume or bool(progress.lost),
                    select=select,
                    lost=progress.lost,
                    watch=watch,
                )
            )
            progress.finish(runs[-1].id)
    return runs


def _print_layers(
    words: Sequence[str], set_: Sequence[str], input_size: str, settings: Mapping[str, Any], format_: str
) -> None:
    """Print the layers of networks; PyTorch is imported only for networks of other packages."""
    from lamina import pipeline
    from lamina.cli import printing
    from lamina.spec import ITEM_BYTES
    from lamina.spec.layer_names import matching_layers

    if format_ == "csv":
        raise UsageError("--dry-run: expected --format table or json, got csv")
    size, variables = check_networks(words, set_, input_size)
    documents = []
    for word in words:
        network = pipeline.describe(word, variables, size, next(iter(settings["batch"]), None))
        workload = overridden(network.workload, settings)
        itemsize = ITEM_BYTES[workload.precision[0]]
        names = matching_layers(workload.layers, [layer.name for layer in network.layers])
        layers = [layer for layer in network.layers if layer.name in names]
        if format_ == "table":
            printing.print_network(network.name, network.batch, layers, itemsize, network.remarks)
        documents += [printing.layer_document(network.name, layer, itemsize) for layer in layers]
    if format_ == "json":
        typer.echo(json.dumps(documents, indent=1))


def _print_memory(targets: Sequence[Target], workloads: Sequence[Workload]) -> None:
    from lamina import pipeline
    from lamina.cli import printing
    from lamina.report.table import memory_table
    from lamina.report.units import size

    for target, workload in zip(targets, workloads, strict=True):
        batch = workload.batch[0] if workload.batch else target.batch
        plan = pipeline.memory(target, batch, workload.phases, workload.precision[0])
        note = f"{size(plan.planned_bytes)} for {size(plan.separate_bytes)} of tensors"
        title = f"{target.name}, batch {batch}, {workload.precision[0]}: {note}; {size(plan.live_bytes)} alive at most"
        printing.show(memory_table(plan.chunks, title, printing.width()))

"""``lamina what-if``: the predicted speedup of a change, and the measured one."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.cli.idle import WaitIdleOption, wait
from lamina.cli.isolated import isolated, surviving
from lamina.cli.networks import grid, networks, overridden, stdout_for_results
from lamina.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from lamina.record import LayerRun, Run, WhatIf
    from lamina.report.what_ifs import ShortWhatIfs


@handled
def what_if(
    spec: options.SpecArgument = None,
    change: Annotated[
        str,
        typer.Option(
            "--change",
            help="Changes, between commas: fusion, without-activations, l1-bypass, channels-last, precision, "
            "cuda-graph, algorithm; default all, or none with --impl.",
        ),
    ] = "",
    impl: options.ImplOption = "",
    layer: options.LayerOption = [],  # noqa: B006  (typer copies it)
    profile: Annotated[
        str,
        typer.Option("--profile", help="A run of 'lamina profile' to predict from; default: profile here first."),
    ] = "",
    inference: Annotated[bool, typer.Option("--inference", help="Only the forward pass, in evaluation mode.")] = False,
    precision: options.PrecisionOption = "",
    batch_size: options.BatchOption = "",
    layout: options.LayoutOption = "",
    device: options.DeviceOption = "auto",
    data: options.DataOption = "",
    repeat: Annotated[
        int | None,
        typer.Option("--repeat", min=1, help="Samples of each timing; default: until their spread is below 2 %."),
    ] = None,
    autotune: Annotated[
        bool, typer.Option("--autotune/--heuristics", help="Whether the library times its algorithms first.")
    ] = True,
    check: options.CheckOption = True,
    seed: options.SeedOption = 0,
    set_: options.SetOption = [],  # noqa: B006  (typer copies it)
    input_size: options.InputSizeOption = "",
    input_: options.InputOption = [],  # noqa: B006  (typer copies it)
    input_fn: options.InputFnOption = "",
    store: options.StoreOption = "",
    resume: options.ResumeOption = False,
    wait_idle: WaitIdleOption = 0,
    format_: options.FormatOption = "table",
    every: options.AllOption = False,
) -> None:
    """Predict the speedup of changes to a network, make each change, and measure it.

    Predictions use only the times, kernels and counters of a profile. Each change is then made, layer by layer and
    for the whole step; its results are compared with float64 and timed. The table shows the error of each
    prediction, and the reason where it is more than a quarter of the gain. A change that cannot be made is listed
    with its reason, and the others go on.

    With --impl, each layer that an implementation supports runs by it, and so does the whole step. The prediction is
    that of the implementation's cost model, or else of the roofline for its FLOPs and bytes; the rule says which.
    With --layer, only these layers are changed and listed; the whole step is listed as well.

    Exit codes: 0 done, 2 usage, 3 device or tool missing, 70 internal error, 130 interrupted.

    Examples:

        lamina what-if alexnet --batch-size 128 --precision fp32,tf32,bf16

        lamina what-if alexnet --change fusion,without-activations --profile latest

        lamina what-if lenet5 --device cpu --change channels-last

        lamina what-if vgg16 --impl sparse,circulant\\[block_size=64] --layer 'classifier.*' --inference
    """
    input_size = options.inputs(input_size, input_, input_fn)
    from lamina.record.what_if import CHANGES
    from lamina.spec import Method, Phase

    options.choices("--format", format_, options.FORMATS)
    known = [name.replace("_", "-") for name in CHANGES]
    impls = options.implementations(impl)
    if any(method == Method() for method in impls):
        raise UsageError("--impl: dense is what the network is: expected another implementation, such as circulant")
    wanted = options.choices("--change", change.replace("_", "-"), known) if change else [] if impls else known
    options.device(device)
    words = spec or []
    settings: dict[str, Any] = {
        "layers": options.layer_patterns(layer),
        "phases": [Phase.FORWARD] if inference else [],
        **grid(precision, batch_size, layout),
        "data": options.dataset(data),
        "repeat": repeat,
        "seed": seed,
        "check": check,
    }
    progress = isolated()
    found = networks(words, set_, input_size, settings["layers"])

    from lamina import pipeline
    from lamina.cli.again import Again
    from lamina.cli.watching import Watcher
    from lamina.store import open_store

    how = pipeline.Options(training=not inference, autotune=autotune)
    chosen = options.device_name(device)
    with surviving(progress), open_store(options.store_url(store)) as database:
        runs = [database.run(run_id) for run_id in progress.finished]
        with Watcher(progress.working) as watch, stdout_for_results():
            wait(wait_idle, chosen, watch.say)
            for word, (target, own) in [*zip(words, found, strict=True)][len(runs) :]:
                workload = overridden(own, settings).model_copy(update={"device": chosen})
                everything = workload.model_copy(update={"layers": ()})
                runs.append(
                    pipeline.what_if(
                        target,
                        workload,
                        database,
                        cache=options.cache_folder(),
                        changes=[name.replace("-", "_") for name in wanted],
                        impls=impls,
                        profile=profile,
                        options=how,
                        elsewhere=Again(word, everything, how, set_, input_size).profile,
                        command=options.command_line(),
                        resume=resume or bool(progress.lost),
                        lost=progress.lost,
                        watch=watch,
                    )
                )
                progress.finish(runs[-1].id)
        for this in runs:
            print_what_ifs(this, database.what_ifs(this.id), format_, () if every else database.layers(this.id))
            typer.echo(f"run {this.id} is in {database.place}", err=True)


def print_what_ifs(this: Run, found: Sequence[WhatIf], format_: str, rows: Sequence[LayerRun] = ()) -> None:
    """Print what-ifs of a run; as a short table if there are many and the ``rows`` of its layers are given."""
    from lamina.cli import printing

    if format_ == "table":
        title = f"What if: {this.target} on {this.environment.get('device')} (run {this.id})"
        printing.show(what_if_table(found, title, printing.width(), rows))
        return
    documents = [document(this, one) for one in found]
    if format_ == "json":
        typer.echo(json.dumps(documents, indent=1))
    elif documents:
        writer = csv.DictWriter(sys.stdout, fieldnames=list(documents[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(documents)


def document(this: Run, one: WhatIf) -> dict[str, Any]:
    """A what-if as flat columns, with what was concluded."""
    from lamina.explain.misses import gain_error, miss

    flat = asdict(one)
    before, after = flat.pop("before"), flat.pop("after") or {}
    times = {f"{side}_{name}": timing.get(name) for side, timing in (("before", before), ("after", after))
             for name in before}  # fmt: skip
    error = gain_error(one)
    concluded = {
        "predicted_gain": one.predicted_gain,
        "measured_gain": one.measured_gain,
        "gain_error": None if error in (float("inf"), float("-inf")) else error,
        "miss": miss(one),
    }
    return {"run": this.id, "target": this.target, **flat, **times, **concluded}


def what_if_table(
    found: Sequence[WhatIf], title: str, width: int | None = None, rows: Sequence[LayerRun] = ()
) -> Table:
    """Predicted and measured gains, the error of the prediction, and the reasons of misses, the whole step first.

    With the ``rows`` of the layers, a long table folds equal layers and shows the slowest lines.
    """
    from lamina.explain.misses import gain_error, left_out, miss
    from lamina.report import units
    from lamina.report.folding import LONG
    from lamina.report.plain_table import Line, plain_table
    from lamina.report.what_ifs import shorten_what_ifs

    caption, shown = left_out(found), found
    if rows and len(found) >= LONG:
        short = shorten_what_ifs(found, rows)
        shown, caption = short.lines, [*caption, *_not_shown(short, len(found))]
    lines = []
    for one in sorted(shown, key=lambda one: (one.precision, one.batch, one.phase != "step")):
        error, after = gain_error(one), one.after
        cells = [
            one.change,
            one.detail,
            one.layer,
            one.phase,
            one.precision,
            units.duration(one.before.median_us),
            _gain(one.predicted_gain),
            units.duration(after.median_us) if after else "",
            _gain(one.measured_gain),
            "" if error is None or abs(error) == float("inf") else f"{error:+.0%}",
            miss(one),
        ]
        faster = after is not None and (one.measured_gain or 0) > 0 and not one.before.overlaps(after)
        lines.append(Line(cells, "green" if faster else None if after else "dim"))
    headings = ["change", "what", "layer", "phase", "precision", "before", "predicted", "after", "measured", "off by"]
    return plain_table(
        [*headings, "why"],
        lines,
        numeric=("before", "predicted", "after", "measured", "off by"),
        title=title,
        caption=caption,
        width=width,
        dispensable=("before", "after", "precision"),
        wrapped="why",
    )


def _not_shown(short: ShortWhatIfs, total: int) -> list[str]:
    """Reasons of what was not executed, and how many lines a short table folds and hides."""
    from lamina.report.plain_table import reasons
    from lamina.report.table import fewer_reasons

    why = reasons((f"{one.detail} ({one.layer} {one.phase})", one.reason) for one in short.refused)
    folded = f"{short.folded} are folded into equal layers" if short.folded else ""
    hidden = f"{short.hidden} faster ones are hidden" if short.hidden else ""
    refused = f"{len(short.refused)} were not executed" if short.refused else ""
    rest = ", ".join(filter(None, (folded, hidden, refused)))
    return [*fewer_reasons(why), f"of {total} changes, {rest}: --all shows every one"]


def _gain(gain: float | None) -> str:
    return "" if gain is None else f"{gain:+.1%}"

"""``lamina simulate training``: the speedup of a whole training run by the compaction engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.cli.networks import check_networks
from lamina.cli.simulate import (
    BatchOption,
    DeviceOption,
    FreshOption,
    NetworkArgument,
    WorkersOption,
    hierarchy,
    simulating,
)
from lamina.errors import UsageError, nearest

if TYPE_CHECKING:
    from rich.table import Table

    from lamina.pipeline.simulate.training_gain import TrainingGain


@handled
def training(
    network: NetworkArgument,
    bench: Annotated[str, typer.Option("--bench", help="Run of 'lamina bench': the time of each layer.")],
    sparsity: Annotated[
        str,
        typer.Option("--sparsity", help="Run of 'lamina sparsity': the sparsity of each layer's input over training."),
    ],
    point: Annotated[
        list[str],
        typer.Option(
            "--point",
            metavar="KEY=VALUE",
            help="Rows of the benchmark, by impl, precision, layout, batch, clock or l2.",
        ),
    ] = [],  # noqa: B006  (typer copies it)
    phases: Annotated[
        str,
        typer.Option("--phases", help="Phases of a convolution that get the simulated speedup of the forward pass."),
    ] = "forward,backward_data,backward_weight",
    bins: Annotated[int, typer.Option("--bins", min=1, help="Bins of sparsity, each simulated at its center.")] = 10,
    device: DeviceOption = "mi6",
    batch: BatchOption = None,
    input_size: options.InputSizeOption = "",
    sample: Annotated[
        bool,
        typer.Option("--sample/--whole", help="Simulate a sample of each layer's workgroups and extrapolate, or all."),
    ] = True,
    set_: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Setting, such as pattern=spatial or sib_kb=256. Repeatable."),
    ] = [],  # noqa: B006
    workers: WorkersOption = 1,
    store: options.StoreOption = "",
    resume: options.ResumeOption = False,
    fresh: FreshOption = False,
    format_: Annotated[str, typer.Option("--format", help="table or json, on stdout.")] = "table",
) -> None:
    """Predict the speedup of training by Amdahl's law: 1 / (1 - P + sum of P C R / S).

    P is the fraction of time of all convolutions, C that of one layer within them, R how often its input had a
    sparsity, and S the simulated speedup of the compaction engine at that sparsity. Only the forward pass is
    simulated; --phases names the phases that get its speedup. Layers that were not observed run dense.

    Example:

        lamina simulate training alexnet --bench 1f0c --sparsity 77aa --point precision=fp32 --batch 16
    """
    check_networks([network], [], input_size)
    hierarchy()
    from lamina.cli import printing
    from lamina.pipeline.simulate import simulate
    from lamina.pipeline.simulate.training_gain import PHASES, POINT, training_gain
    from lamina.simulate.grid import value_of
    from lamina.store import open_store

    (form,) = options.choices("--format", format_, ("table", "json"))
    point_ = options.pairs(point)
    for key in point_:
        if key not in POINT:
            raise UsageError(f"--point: {key!r} is unknown: {nearest(key, POINT)}")
    named = options.choices("--phases", phases, PHASES)
    chosen: dict[str, str | int | float | bool] = {"network": network, "device.preset": device, "sampling": sample}
    chosen |= {"batch": batch} if batch else {}
    chosen |= {"input_size": input_size} if input_size else {}
    chosen |= {key: value_of(value) for key, value in options.pairs(set_).items()}
    with open_store(options.store_url(store)) as database, simulating(workers) as (engine, watch):
        measured, observed = database.run(bench), database.run(sparsity)
        done = training_gain(
            chosen,
            database.layers(measured.id),
            database.sparsities(observed.id),
            lambda jobs: simulate(
                jobs,
                database,
                engine,
                target=network,
                config={"settings": chosen, "bench": measured.id, "sparsity": observed.id, "bins": bins},
                command=options.command_line(),
                resume=resume,
                fresh=fresh,
                watch=watch,
            ),
            point=point_,
            phases=named,
            bins=bins,
        )
    if form == "table":
        printing.show(_table(done, network))
        return
    rows = [
        {
            "layer": each.layer, "share": each.before, "observed": done.observed.get(each.layer),
            "speedup": each.speedup, "sparsity": list(done.histograms[each.layer]),
            "speedups": list(done.speedups[each.layer]),
        }
        for each in done.gain.layers
    ]  # fmt: skip
    typer.echo(
        json.dumps(
            {"share": done.gain.share, "speedup": done.gain.speedup, "layers_speedup": done.gain.layers_speedup,
             "bound": done.gain.bound if done.gain.other else None, "run": done.run.id, "layers": rows},
            indent=1,
        )
    )  # fmt: skip


def _table(done: TrainingGain, network: str) -> Table:
    from lamina.cli import printing
    from lamina.report.plain_table import Line, plain_table

    def sparsity(layer: str) -> str:
        histogram = done.histograms[layer]
        if layer not in done.observed:
            return ""
        return f"{sum(share * (bin_ + 0.5) / len(histogram) for bin_, share in enumerate(histogram)):.0%}"

    lines = [
        Line([each.layer, f"{each.before:.1%}", done.observed.get(each.layer, "dense"), sparsity(each.layer),
              f"{each.speedup:.2f}x"])
        for each in done.gain.layers
    ]  # fmt: skip
    gain = done.gain
    lines.append(Line(["convolutions", f"{gain.share:.1%}", "", "", f"{gain.layers_speedup:.2f}x"]))
    lines.append(Line(["training", "100.0%", "", "", f"{gain.speedup:.2f}x"]))
    return plain_table(
        ["layer", "share of time", "sparsity of", "mean sparsity", "speedup"],
        lines,
        numeric=["share of time", "mean sparsity", "speedup"],
        title=f"{network}: at most {gain.bound:.2f}x (run {done.run.id})",
        width=printing.width(),
    )

"""``lamina simulate training``: what an engine would make of a whole training."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from lamina.cli import options
from lamina.cli.handled import handled
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
    bench: Annotated[str, typer.Option("--bench", help="Run of lamina bench: shares of time.")],
    sparsity: Annotated[str, typer.Option("--sparsity", help="Run of lamina sparsity: how sparse, how often.")],
    point: Annotated[
        list[str],
        typer.Option("--point", metavar="KEY=VALUE", help="Which rows: impl, precision, layout, batch, clock, l2."),
    ] = [],  # noqa: B006  (typer copies it)
    phases: Annotated[
        str, typer.Option("--phases", help="Phases of a convolution that the engine speeds up as it does the first.")
    ] = "forward,backward_data,backward_weight",
    bins: Annotated[int, typer.Option("--bins", min=1, help="Of sparsity, each simulated at its middle.")] = 10,
    device: DeviceOption = "mi6",
    batch: BatchOption = None,
    sample: Annotated[
        bool, typer.Option("--sample/--whole", help="Simulate a part of each layer's workgroups and extrapolate.")
    ] = True,
    set_: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Such as pattern=spatial, sib_kb=256. Repeatable.")
    ] = [],  # noqa: B006
    workers: WorkersOption = 1,
    store: options.StoreOption = "",
    resume: options.ResumeOption = False,
    fresh: FreshOption = False,
    format_: Annotated[str, typer.Option("--format", help="table or json, on stdout.")] = "table",
) -> None:
    """Put together what was measured, observed and simulated: 1 / (1 - P + sum of P C R / S).

    P and C are shares of time of the convolutions, R how often each layer's input was how sparse, S the simulated
    speed-up of the compaction engine at that sparsity. Only the forward product is simulated; --phases says for which
    phases its speed-up is taken. What was not observed runs dense.

    Example:

        lamina simulate training alexnet --bench 1f0c --sparsity 77aa --point precision=fp32 --batch 16
    """
    hierarchy()
    from lamina.cli import printing
    from lamina.pipeline.simulate import simulate
    from lamina.pipeline.simulate.training_gain import PHASES, POINT, training_gain
    from lamina.simulate.grid import value_of
    from lamina.store import open_store

    (form,) = options.choices("--format", format_, ("table", "json"))
    chosen = options.pairs(point)
    for key in chosen:
        if key not in POINT:
            raise UsageError(f"--point: {key!r} is unknown: {nearest(key, POINT)}")
    named = options.choices("--phases", phases, PHASES)
    asked: dict[str, str | int | float | bool] = {"network": network, "device.preset": device, "sampling": sample}
    asked |= {"batch": batch} if batch else {}
    asked |= {key: value_of(value) for key, value in options.pairs(set_).items()}
    with open_store(options.store_place(store)) as database, simulating(workers) as (engine, watch):
        measured, observed = database.run(bench), database.run(sparsity)
        done = training_gain(
            asked,
            database.layers(measured.id),
            database.sparsities(observed.id),
            lambda jobs: simulate(
                jobs,
                database,
                engine,
                target=network,
                config={"settings": asked, "bench": measured.id, "sparsity": observed.id, "bins": bins},
                command=options.command_line(),
                resume=resume,
                fresh=fresh,
                watch=watch,
            ),
            point=chosen,
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
        shares = done.histograms[layer]
        if layer not in done.observed:
            return ""
        return f"{sum(share * (place + 0.5) / len(shares) for place, share in enumerate(shares)):.0%}"

    lines = [
        Line([each.layer, f"{each.before:.1%}", done.observed.get(each.layer, "dense"), sparsity(each.layer),
              f"{each.speedup:.2f}x"])
        for each in done.gain.layers
    ]  # fmt: skip
    gain = done.gain
    lines.append(Line(["convolutions", f"{gain.share:.1%}", "", "", f"{gain.layers_speedup:.2f}x"]))
    lines.append(Line(["training", "100.0%", "", "", f"{gain.speedup:.2f}x"]))
    return plain_table(
        ["layer", "share of time", "sparsity seen at", "mean sparsity", "speed-up"],
        lines,
        numeric=["share of time", "mean sparsity", "speed-up"],
        title=f"{network}: at most {gain.bound:.2f}x (run {done.run.id})",
        width=printing.width(),
    )

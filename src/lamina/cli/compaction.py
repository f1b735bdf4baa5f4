"""``lamina simulate compaction-engine``: the speedup of an engine that drops zeros between L2 and memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.cli.networks import check_networks
from lamina.cli.simulate import (
    BatchOption,
    DeviceOption,
    FreshOption,
    LayersOption,
    NetworkArgument,
    PlanOption,
    WorkersOption,
    by_batch,
    hierarchy,
    planned,
    simulating,
    write,
)
from lamina.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from lamina.pipeline.simulate.compaction import Gains


@handled
def compaction_engine(
    network: NetworkArgument,
    layer: LayersOption = None,
    device: DeviceOption = "mi6",
    batch: BatchOption = None,
    input_size: options.InputSizeOption = "",
    density: Annotated[
        float | None, typer.Option("--density", min=0, max=1, help="Fraction of the layers' inputs that is not zero.")
    ] = None,
    pattern: Annotated[str, typer.Option("--pattern", help="Distribution of the zeros: iid, channel, spatial.")] = "",
    masks: Annotated[
        str, typer.Option("--masks", help="Zeros recorded in training: a file of 'lamina sparsity --masks'.")
    ] = "",
    attribute: Annotated[
        bool,
        typer.Option("--attribute", help="Attribute the speedup to its causes, by a chain of control simulations."),
    ] = False,
    control: Annotated[
        list[str] | None,
        typer.Option("--control", help="Also simulate this control in place of the engine. Repeatable."),
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Simulate a sample of each layer's workgroups, and extrapolate.")
    ] = False,
    set_: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Setting, such as sib_kb=256, search=hasty or device.dram.mode=banked. Repeatable.",
        ),
    ] = [],  # noqa: B006  (typer copies it)
    workers: WorkersOption = 1,
    plan: PlanOption = None,
    store: options.StoreOption = "",
    resume: options.ResumeOption = False,
    fresh: FreshOption = False,
    format_: options.FormatOption = "table",
) -> None:
    """Simulate the convolutions of a network with a compaction engine, and the dense kernel without it.

    Each speedup is shown beside the bound that no engine can exceed: the dense kernel's time over the least time in
    which the non-zeros are multiplied and the data read. "roofline" is the fraction of its own roofline that the dense
    kernel reaches. JSON and CSV also hold the speedups of ideal kernels, by 1 / density and by rooflines.
    --attribute factors it into the kernel itself, the smaller L2, prefetch, narrower operands, fewer cache lines and
    skipped multiplications. JSON and CSV also hold the counts of every run. With --plan, layers read what the plan says
    of the density of their inputs.

    Exit codes: 0 done, 1 a layer has no result, 2 usage, 70 internal error, 130 interrupted.

    Example:

        lamina simulate compaction-engine alexnet --batch 16 --density 0.4 --sample --attribute
    """
    check_networks([network], [], input_size)
    hierarchy()
    from lamina.cli import printing
    from lamina.pipeline.simulate import Planner, compaction, simulate
    from lamina.simulate.compaction_engine.attribution import NEEDED
    from lamina.simulate.compaction_engine.unit import CONTROLS, Control
    from lamina.simulate.grid import value_of
    from lamina.store import open_store

    (form,) = options.choices("--format", format_, options.FORMATS)
    named = options.choices("--control", ",".join(control), CONTROLS) if control else []
    wanted: list[Control] = [each for each in CONTROLS if each in named or (attribute and each in NEEDED)]
    chosen: dict[str, Any] = {"network": network, "device.preset": device, "sampling": sample}
    given = {"batch": batch, "density": density, "input_size": input_size, "pattern": pattern, "masks": masks}
    chosen |= {key: value for key, value in given.items() if value not in (None, "")}
    if masks and not pattern:
        chosen["pattern"] = "recorded"
    chosen |= {key: value_of(value) for key, value in options.pairs(set_).items()}
    if plan and density is not None:
        raise UsageError("--plan and --density: both set the density of inputs; omit one")
    found = options.whole_plan(plan)
    planner = Planner("--layer" if layer else "")
    layers = {
        name: dict(zip(each, planned(list(each.values()), found), strict=True))
        for name, each in compaction.plan(by_batch(chosen, found), layer or [], wanted, planner).items()
    }
    jobs = [job for each in layers.values() for job in each.values()]
    with open_store(options.store_url(store)) as database:
        with simulating(workers) as (engine, watch):
            done = compaction.gains(
                layers,
                lambda jobs: simulate(
                    jobs,
                    database,
                    engine,
                    target=jobs[0].network,
                    config={"settings": chosen, "layers": layer or [], "controls": wanted}
                    | ({"plan": found.model_dump()} if found else {}),
                    command=options.command_line(),
                    resume=resume,
                    fresh=fresh,
                    watch=watch,
                ),
            )
        run = done.simulated.run
        if form == "table":
            first = jobs[0]
            printing.show(_table(done, f"{first.network}, batch {first.batch} on {first.device.name} (run {run.id})"))
        else:
            write([each.to_dict() for each in done.layers], form)
        typer.echo(
            f"run {run.id} is in {database.place}; {done.simulated.found} of {len(jobs)} results were stored before",
            err=True,
        )
    if done.simulated.failed:
        raise typer.Exit(1)


def _table(done: Gains, title: str) -> Table:
    from lamina.cli import printing
    from lamina.report.plain_table import Line, plain_table

    changes = [gain.change for gain in next((each.gains for each in done.layers if each.gains), ())]
    extra = [name for name in done.layers[0].runs if name not in ("engine", "dense")] if not changes else []
    rates = {
        "sib_hit_rate": "SIB hits",
        "engine_occupancy": "engine occupancy",
        "lines_per_compacted_line": "lines per line",
    }
    headings = [
        "layer", "MxNxK", "density", "dense cycles", "engine cycles", "speedup", "bound", "roofline",
        *changes, *extra, *rates.values(), "note",
    ]  # fmt: skip
    lines = []
    for each in done.layers:
        row, factors = each.to_dict(), {gain.change: gain.factor for gain in each.gains}
        size = f"{row['m']}x{row['n']}x{row['k']}" + (
            f" x{row['groups']}" if each.jobs["engine"].gemm.groups > 1 else ""
        )
        cells = [each.jobs["engine"].layer, size, _percentage(row["density"])]
        cells += [_count(row["dense_cycles"]), _count(row["engine_cycles"]), _times(row["speedup"])]
        cells += [_times(row["speedup_bound"]), _percentage(row["dense_fraction"])]
        cells += [_times(factors.get(name)) for name in changes] + [_times(each.speedup(name)) for name in extra]
        cells += [_rate(row, f"engine_{key}") for key in rates]
        lines.append(Line([*cells, each.reason]))
    if len(lines) > 1:
        total = ["all layers", "", "", "", "", _times(done.speedup()), _times(done.speedup_bound), ""]
        total += [""] * len(changes)
        total += [_times(done.speedup(name)) for name in extra]
        lines.append(Line(total + [""] * (len(headings) - len(total))))
    kept = [column for column in range(len(headings)) if any(line.cells[column] for line in lines)]
    return plain_table(
        [headings[column] for column in kept],
        [Line([line.cells[column] for column in kept]) for line in lines],
        numeric=headings[2:-1],
        title=title,
        width=printing.width(),
        dispensable=["lines per line", "engine occupancy", "SIB hits", "dense cycles", "engine cycles", "roofline"],
        wrapped="note",
    )


def _rate(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return "" if value is None else f"{value:.2f}" if key.endswith("line") else f"{value:.1%}"


def _percentage(value: Any) -> str:
    return "" if value is None else f"{value:.1%}"


def _count(value: Any) -> str:
    return "" if value is None else f"{value:,}"


def _times(value: Any) -> str:
    return "" if value is None else f"{value:.2f}x"

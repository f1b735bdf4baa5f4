"""``lamina simulate compaction-engine``: what an engine that drops zeros between L2 and memory does for a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.cli.simulate import (
    BatchOption,
    DeviceOption,
    FreshOption,
    LayersOption,
    NetworkArgument,
    WorkersOption,
    hierarchy,
    simulating,
    write,
)

if TYPE_CHECKING:
    from rich.table import Table

    from lamina.pipeline.simulate.compaction import Gains


@handled
def compaction_engine(
    network: NetworkArgument,
    layer: LayersOption = None,
    device: DeviceOption = "mi6",
    batch: BatchOption = None,
    density: Annotated[
        float | None, typer.Option("--density", min=0, max=1, help="Share of the layers' inputs that is not zero.")
    ] = None,
    pattern: Annotated[str, typer.Option("--pattern", help="Where zeros lie: iid, channel, spatial.")] = "",
    masks: Annotated[
        str, typer.Option("--masks", help="Zeros as a training had them: a file of lamina sparsity.")
    ] = "",
    attribute: Annotated[
        bool, typer.Option("--attribute", help="Also run the chain of controls that takes the speed-up apart.")
    ] = False,
    control: Annotated[
        list[str] | None, typer.Option("--control", help="Also run this in the engine's place. Repeatable.")
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Simulate a part of each layer's workgroups and extrapolate.")
    ] = False,
    set_: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Such as sib_kb=256, search=hasty, device.dram.mode=banked."),
    ] = [],  # noqa: B006  (typer copies it)
    workers: WorkersOption = 1,
    store: options.StoreOption = "",
    resume: options.ResumeOption = False,
    fresh: FreshOption = False,
    format_: options.FormatOption = "table",
) -> None:
    """Simulate the convolutions of a network with a compaction engine, and the dense kernel without, layer by layer.

    Beside each speed-up stands what no engine can beat: multiplications alone (1 / density), and both rooflines.
    With --attribute it is split into the kernel's own, the smaller L2's, prefetch, narrower operands, fewer lines and
    skipped multiplications, whose product it is. JSON and CSV have the counts of every run as well.

    Exit codes: 0 done, 1 a layer has no result, 2 usage, 130 interrupted.

    Example:

        lamina simulate compaction-engine alexnet --batch 16 --density 0.4 --sample --attribute
    """
    hierarchy()
    from lamina.cli import printing
    from lamina.pipeline.simulate import simulate
    from lamina.pipeline.simulate.compaction import gains, plan
    from lamina.simulate.compaction_engine.attribution import NEEDED
    from lamina.simulate.compaction_engine.unit import CONTROLS, Control
    from lamina.simulate.grid import value_of
    from lamina.store import open_store

    (form,) = options.choices("--format", format_, options.FORMATS)
    named = options.choices("--control", ",".join(control), CONTROLS) if control else []
    wanted: list[Control] = [each for each in CONTROLS if each in named or (attribute and each in NEEDED)]
    asked: dict[str, Any] = {"network": network, "device.preset": device, "sampling": sample}
    given = {"batch": batch, "density": density, "pattern": pattern or None, "masks": masks or None}
    asked |= {key: value for key, value in given.items() if value is not None}
    if masks and not pattern:
        asked["pattern"] = "recorded"
    asked |= {key: value_of(value) for key, value in options.pairs(set_).items()}
    planned = plan(asked, layer or [], wanted)
    jobs = [job for each in planned.values() for job in each.values()]
    with open_store(options.store_place(store)) as database:
        with simulating(workers) as (engine, watch):
            done = gains(
                planned,
                lambda jobs: simulate(
                    jobs,
                    database,
                    engine,
                    target=jobs[0].network,
                    config={"settings": asked, "layers": layer or [], "controls": wanted},
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
        typer.echo(f"run {run.id} is in {database.place}; {done.simulated.found} of {len(jobs)} were there", err=True)
    if done.simulated.failed:
        raise typer.Exit(1)


def _table(done: Gains, title: str) -> Table:
    from lamina.cli import printing
    from lamina.report.plain_table import Line, plain_table

    changes = [gain.change for gain in next((each.gains for each in done.layers if each.gains), ())]
    extra = [name for name in done.layers[0].runs if name not in ("engine", "dense")] if not changes else []
    rates = {"sib_hit_rate": "SIB hits", "engine_occupancy": "units busy", "lines_per_compacted_line": "lines a line"}
    headings = [
        "layer", "MxNxK", "density", "dense cycles", "engine cycles", "speed-up", *changes, *extra, "1/density",
        "roofline", *rates.values(), "remark",
    ]  # fmt: skip
    lines = []
    for each in done.layers:
        row, factors = each.to_dict(), {gain.change: gain.factor for gain in each.gains}
        size = f"{row['m']}x{row['n']}x{row['k']}" + (
            f" x{row['groups']}" if each.jobs["engine"].gemm.groups > 1 else ""
        )
        cells = [each.jobs["engine"].layer, size, _share(row["density"])]
        cells += [_count(row["dense_cycles"]), _count(row["engine_cycles"]), _times(row["speedup"])]
        cells += [_times(factors.get(name)) for name in changes] + [_times(each.speedup(name)) for name in extra]
        cells += [_times(row["mac_skip_bound"]), _times(row["roofline_bound"])]
        cells += [_rate(row, f"engine_{key}") for key in rates]
        lines.append(Line([*cells, each.reason]))
    if len(lines) > 1:
        total = ["all layers", "", "", "", "", _times(done.speedup()), *[""] * len(changes)]
        total += [_times(done.speedup(name)) for name in extra]
        lines.append(Line(total + [""] * (len(headings) - len(total))))
    kept = [place for place in range(len(headings)) if any(line.cells[place] for line in lines)]
    return plain_table(
        [headings[place] for place in kept],
        [Line([line.cells[place] for place in kept]) for line in lines],
        numeric=headings[2:-1],
        title=title,
        width=printing.width(),
        dispensable=["lines a line", "units busy", "SIB hits", "dense cycles", "engine cycles"],
        wrapped="remark",
    )


def _rate(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return "" if value is None else f"{value:.2f}" if key.endswith("line") else f"{value:.1%}"


def _share(value: Any) -> str:
    return "" if value is None else f"{value:.1%}"


def _count(value: Any) -> str:
    return "" if value is None else f"{value:,}"


def _times(value: Any) -> str:
    return "" if value is None else f"{value:.2f}x"

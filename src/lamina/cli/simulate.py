"""``lamina simulate``: a GPU's memory hierarchy, and the validation of the simulator."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.cli.networks import check_networks
from lamina.errors import MissingError

if TYPE_CHECKING:
    from rich.table import Table

    from lamina.pipeline.simulate import Watch
    from lamina.simulate.engines import Engine
    from lamina.simulate.jobs import Job
    from lamina.spec.plan import Plan

app = typer.Typer(no_args_is_help=True, help="Simulate a GPU's memory hierarchy; validate it against measured runs.")

NetworkArgument = Annotated[
    str,
    typer.Argument(
        metavar="NETWORK",
        help="A network of the zoo, a file, a recipe, package.module:function or file.py:function.",
    ),
]
LayersOption = Annotated[
    list[str] | None,
    typer.Option("--layer", help="Name or pattern of convolutions, such as 'features.*'. Repeatable; default all."),
]
DeviceOption = Annotated[
    str, typer.Option("--device", "-d", help="A device of 'lamina simulate devices', or a device file.")
]
BatchOption = Annotated[int | None, typer.Option("--batch", "--batch-size", "-b", min=1, help="Simulated batch size.")]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", "-j", min=1, help="Number of simulations in parallel, each in its own process."),
]
PlanOption = Annotated[
    Path | None,
    typer.Option("--plan", help="Shapes, densities and batch size of a plan of 'lamina study': its file or folder."),
]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Simulate again instead of using stored results.")]


@app.command("run")
@handled
def run(
    network: NetworkArgument,
    layer: LayersOption = None,
    device: DeviceOption = "mi6",
    batch: BatchOption = None,
    input_size: options.InputSizeOption = "",
    set_: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Setting, such as device.l2.bytes=1048576 or sampling=true. Repeatable."
        ),
    ] = [],  # noqa: B006  (typer copies it)
    workers: WorkersOption = 1,
    plan: PlanOption = None,
    store: options.StoreOption = "",
    resume: options.ResumeOption = False,
    fresh: FreshOption = False,
    format_: options.FormatOption = "table",
) -> None:
    """Simulate the convolutions of a network as dense matrix products, layer by layer.

    Results are stored as they come; stored results are not simulated again. With --plan, eliminated layers have the
    shapes of the plan.

    Exit codes: 0 done, 1 a layer has no result, 2 usage, 70 internal error, 130 interrupted.

    Examples:

        lamina simulate run alexnet --batch 16 --layer 'features.*' --set sampling=true

        lamina simulate run mymodels.py:net --input-size 3x64x64 --batch 8
    """
    check_networks([network], [], input_size)
    given = {"batch": batch, "input_size": input_size}
    settings = {"network": network, "device.preset": device} | {key: value for key, value in given.items() if value}
    simulate_layers(settings, set_, layer or [], workers, store, resume, fresh, format_, options.whole_plan(plan))


def simulate_layers(
    settings: Mapping[str, Any],
    set_: Sequence[str],
    layers: Sequence[str],
    workers: int | None,
    store: str,
    resume: bool,
    fresh: bool,
    format_: str,
    plan: Plan | None = None,
) -> None:
    """Simulate a configuration, in which ``set_`` overrides ``settings``, and print it layer by layer."""
    hierarchy()
    from lamina.cli import printing
    from lamina.pipeline.simulate import Planner, simulate
    from lamina.simulate.grid import value_of
    from lamina.store import open_store

    (form,) = options.choices("--format", format_, options.FORMATS)
    chosen = by_batch(settings, plan) | {key: value_of(value) for key, value in options.pairs(set_).items()}
    planner = Planner("--layer" if layers else "")
    named = [chosen | {"layer": one} for one in layers] or [chosen]
    jobs = list({job.key: job for each in named for job in planned(planner.jobs(each), plan)}.values())
    with open_store(options.store_url(store)) as database:
        with simulating(workers) as (engine, watch):
            done = simulate(
                jobs,
                database,
                engine,
                target=jobs[0].network,
                config={"settings": chosen, "layers": list(layers)} | ({"plan": plan.model_dump()} if plan else {}),
                command=options.command_line(),
                resume=resume,
                fresh=fresh,
                watch=watch,
            )
        rows = [result.to_dict() for result in done.results]
        if form == "table":
            title = f"{jobs[0].network}, batch {jobs[0].batch}, {jobs[0].unit} on {jobs[0].device.name}"
            printing.show(_layers_table(rows, f"{title} (run {done.run.id})"))
        else:
            write(rows, form)
        typer.echo(
            f"run {done.run.id} is in {database.place}; {done.found} of {len(jobs)} results were stored before",
            err=True,
        )
    if done.failed:
        raise typer.Exit(1)


def by_batch(settings: Mapping[str, Any], plan: Plan | None) -> dict[str, Any]:
    """The settings with the batch size of a plan, if they have none."""
    return ({"batch": plan.batch} if plan else {}) | dict(settings)


def planned(jobs: Sequence[Job], plan: Plan | None) -> Sequence[Job]:
    """The jobs by a plan; what of it is not simulated is printed."""
    if plan is None:
        return jobs
    from lamina.pipeline.simulate.planned import by_plan

    found, remarks = by_plan(jobs, plan)
    for remark in remarks:
        typer.echo(remark, err=True)
    return found


@contextmanager
def simulating(workers: int | None, engine: Engine | None = None) -> Iterator[tuple[Engine, Watch]]:
    """An engine for so many jobs in parallel, by default one for each processor, or this one, and its progress bar."""
    from lamina.cli.watching import Bar
    from lamina.pipeline.simulate import Finished
    from lamina.simulate.engines import Here, Processes

    count = workers or os.cpu_count() or 1
    with Bar() as bar:
        task = bar.add_task("simulating", total=None)
        before = 0

        def watch(event: Finished) -> None:
            nonlocal before
            before = event.done
            bar.update(task, completed=event.done, total=event.total)
            if event.result is not None and event.result.run is None:
                bar.say(f"no result: {event.result.reason}")

        def inside(share: float) -> None:
            bar.update(task, completed=before + share)

        yield engine or (Here(inside) if count == 1 else Processes(count)), watch


def write(rows: Sequence[Mapping[str, Any]], form: str) -> None:
    """Rows as JSON or CSV on stdout; an absent value is null, or an empty cell."""
    if form == "json":
        typer.echo(json.dumps(list(rows), indent=1, allow_nan=False))
        return
    table = csv.DictWriter(sys.stdout, list(dict.fromkeys(key for each in rows for key in each)), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)


def _layers_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    from lamina.cli import printing
    from lamina.report import units
    from lamina.report.plain_table import Line, plain_table

    lines = []
    for row in rows:
        size = f"{row['m']}x{row['n']}x{row['k']}" + (f" x{row['groups']}" if row["groups"] > 1 else "")
        if row["cycles"] is None:
            lines.append(Line([row["layer"], size, *[""] * 7, row["reason"]]))
            continue
        error = f"± {row['relative_error']:.1%}" if row["relative_error"] is not None else ""
        hits = f"{row['l2_hit_rate']:.1%}" if row["l2_hit_rate"] is not None else ""
        rates = [f"{row['tflops']:.2f}", hits, units.size(row["dram_bytes"]), f"{row['dram_gbs']:.1f}"]
        time = [f"{row['cycles']:,}", units.duration(row["microseconds"]), error]
        lines.append(Line([row["layer"], size, *time, *rates, ""]))
    headings = ["layer", "MxNxK", "cycles", "time", "interval", "TFLOP/s", "L2 hits", "DRAM", "GB/s", "note"]
    kept = [column for column in range(len(headings)) if any(line.cells[column] for line in lines)]
    return plain_table(
        [headings[column] for column in kept],
        [Line([line.cells[column] for column in kept]) for line in lines],
        numeric=headings[2:9],
        title=title,
        width=printing.width(),
        dispensable=["interval", "GB/s"],
        wrapped="note",
    )


@app.command("validate")
@handled
def validate(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="CSV of MGPUSim runs of the dense kernel, with its counters; default the 19 runs that lamina ships.",
            show_default=False,
        ),
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="table or json, on stdout.")] = "table",
) -> None:
    """Simulate every run of a file, and compare times and counts with the measured ones.

    A run that informed a constant of the simulator is fitted; only hold-outs count in the errors of hold-outs.

    Exit code 1 if a count that must agree does not.

    Examples:

        lamina simulate validate

        lamina simulate validate mgpusim.csv
    """
    from lamina.cli import printing
    from lamina.cli.watching import Bar
    from lamina.report.table import validation_table

    simulator = hierarchy()
    (form,) = options.choices("--format", format_, ("table", "json"))
    rows = simulator.read_reference(file) if file else simulator.shipped_reference()
    with Bar() as bar:
        task = bar.add_task("simulating", total=len(rows))

        def show(share: float) -> None:
            bar.update(task, completed=share * len(rows))

        done = simulator.validate(rows, progress=show)
    document = done.to_dict()
    if form == "json":
        typer.echo(json.dumps(document, indent=1))
    else:
        printing.show(validation_table(document, printing.width()))
    if not done.held:
        raise typer.Exit(1)


@app.command("devices")
@handled
def devices(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Show this device's settings; without a name, list them.")
    ] = "",
) -> None:
    """List the devices that can be simulated, or print the settings of one, as the file that --device reads.

    Example:

        lamina simulate devices mi6
    """
    simulator = hierarchy()

    if not name:
        for each in simulator.presets():
            typer.echo(each)
        return
    for key, value in simulator.preset(name).settings().items():
        typer.echo(f"{key} = {json.dumps(value)}")


def hierarchy() -> ModuleType:
    """The simulator, which needs numba, an optional dependency."""
    try:
        return import_module("lamina.simulate.hierarchy")
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        raise MissingError("simulating needs numba, which is not installed: pip install 'lamina[sim]'") from error

"""``lamina compare``: two stored runs side by side, by layer, by kernel or by counter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.errors import LaminaError, UsageError

if TYPE_CHECKING:
    from lamina.pipeline.explain import Side
    from lamina.record.comparison import Comparison

LEVELS = ("layer", "kernel", "counter")
FORMATS = ("table", "json")
LISTED = 10
"""Regressions in a message."""

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, its beginning, or 'latest'.")]


@handled
def compare(
    first: RunArgument,
    second: Annotated[str, typer.Argument(metavar="OTHER", help="The run that is compared with RUN.")],
    by: Annotated[
        str, typer.Option("--by", help="layer: times; kernel: launched kernels; counter: hardware counters.")
    ] = "layer",
    batch_size: Annotated[
        str,
        typer.Option("--batch-size", "-b", help="Only this batch size, or two: of RUN and of OTHER, such as 16,128."),
    ] = "",
    per_item: Annotated[bool, typer.Option("--per-item", help="Divide times and counts by the batch size.")] = False,
    layer: Annotated[str, typer.Option("--layer", "-l", help="Only this layer.")] = "",
    metric: Annotated[str, typer.Option("--metric", help="By counter: only these metrics, between commas.")] = "",
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Print every pair; by default a long table shows the largest differences, --by kernel what differs.",
        ),
    ] = False,
    max_slowdown: Annotated[
        float | None,
        typer.Option(
            "--max-slowdown",
            metavar="PERCENT",
            min=0,
            help="By layer, for CI: exit code 1 if a phase of OTHER takes more than this longer than in RUN, beyond "
            "the spread of the samples, or has no time.",
        ),
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="table or json, on stdout.")] = "table",
    store: options.StoreOption = "",
    other_store: Annotated[str, typer.Option("--other-store", help="Database of OTHER, by default that of RUN.")] = "",
) -> None:
    """Compare two runs: of two devices, batch sizes, versions or precisions.

    Rows are paired by layer, phase and the settings that vary within a run; settings that are fixed within each run
    may differ, and are named. A difference within the spread of the samples counts as none.

    Examples:

        lamina compare 3f2a 91bc

        lamina compare latest latest --batch-size 16,128 --per-item

        lamina compare 3f2a 91bc --by counter --layer features.3 --other-store h100.db

        lamina compare 3f2a latest --max-slowdown 5
    """
    from lamina.pipeline.explain import look_up
    from lamina.store import open_store

    (level,) = options.choices("--by", by, LEVELS)
    (form,) = options.choices("--format", format_, FORMATS)
    if max_slowdown is not None and level != "layer":
        raise UsageError(f"--max-slowdown: expected --by layer, got {level}")
    if metric and level != "counter":
        raise UsageError(f"--metric: expected --by counter, got {level}")
    batches = options.counts("--batch-size", batch_size) if batch_size else [None]
    if len(batches) > 2:
        raise UsageError(f"--batch-size: expected one or two batch sizes, got {batch_size!r}")
    with ExitStack() as opened:
        ours = theirs = opened.enter_context(open_store(options.stored_url(store), read_only=True))
        if other_store:
            theirs = opened.enter_context(open_store(options.stored_url(other_store, "--other-store"), read_only=True))
        a, b = look_up(ours, first, batches[0]), look_up(theirs, second, batches[-1])
    if level == "layer":
        _by_layer(a, b, layer, per_item, form, every, max_slowdown)
    elif level == "kernel":
        _by_kernel(a, b, layer, every, form)
    else:
        _by_counter(a, b, layer, options.split(metric), per_item, form)


def _by_layer(
    a: Side, b: Side, layer: str, per_item: bool, form: str, every: bool, max_slowdown: float | None
) -> None:
    from lamina.cli import printing
    from lamina.explain import overall, regressions
    from lamina.pipeline.explain import compare_layers
    from lamina.report.table import diff_table

    pairs = compare_layers(a, b, layer, per_item)
    if form == "json":
        _print_json(a, b, [_pair(it) for it in pairs])
    else:
        title = f"{b.title} against {a.title}{', per item' if per_item else ''}"
        printing.show(diff_table(pairs, a.column, b.column, title, printing.width(), brief=not every))
        together = overall(pairs)
        if together is not None:
            typer.echo(f"all paired phases together: {together:.2f}x")
    if max_slowdown is not None and (worse := regressions(pairs, max_slowdown)):
        more = f"; and {len(worse) - LISTED} more" if len(worse) > LISTED else ""
        exceed = "phase exceeds" if len(worse) == 1 else "phases exceed"
        raise LaminaError(
            f"run {b.run.id}: {len(worse)} {exceed} --max-slowdown {max_slowdown:g} against run {a.run.id}: "
            f"{'; '.join(worse[:LISTED])}{more}"
        )


def _pair(it: Comparison) -> dict[str, Any]:
    times = [row.timing.median_us if row and row.timing else None for row in (it.a, it.b)]
    return {
        "layer": it.layer,
        "phase": it.phase,
        "a_us": times[0],
        "b_us": times[1],
        "speedup": it.speedup,
        "verdict": it.verdict,
        "differs": {axis: list(sides) for axis, sides in it.differs.items()},
        "reason": it.reason,
    }


def _by_kernel(a: Side, b: Side, layer: str, every: bool, form: str) -> None:
    from lamina.cli import printing
    from lamina.pipeline.explain import compare_kernels
    from lamina.report.findings_table import kernels_table

    pairs = compare_kernels(a, b, layer)
    if form == "json":
        _print_json(a, b, [asdict(it) | {"removed": it.removed, "added": it.added} for it in pairs])
        return
    rows = [
        (it.layer, it.phase, it.change, it.a_us, it.b_us, it.removed, it.added)
        for it in pairs
        if every or it.change != "same"
    ]
    alike = len(pairs) - len(rows)
    title = f"kernels of {b.title} against {a.title}" + (f"; {alike} phases launch the same" if alike else "")
    printing.show(kernels_table(rows, a.column, b.column, title, printing.width()))


def _by_counter(a: Side, b: Side, layer: str, metrics: Sequence[str], per_item: bool, form: str) -> None:
    from lamina.cli import printing
    from lamina.pipeline.explain import compare_counters
    from lamina.report.findings_table import counters_table

    pairs = compare_counters(a, b, layer, metrics, per_item)
    if form == "json":
        _print_json(a, b, [asdict(it) | {"ratio": it.ratio} for it in pairs])
        return
    rows = [(it.layer, it.phase, it.metric, it.unit, it.a, it.b, it.ratio) for it in pairs]
    title = f"counters of {b.title} against {a.title}"
    printing.show(counters_table(rows, a.column, b.column, title, printing.width()))


def _print_json(a: Side, b: Side, pairs: list[dict[str, Any]]) -> None:
    typer.echo(json.dumps({"a": a.run.id, "b": b.run.id, "pairs": pairs}, indent=1))

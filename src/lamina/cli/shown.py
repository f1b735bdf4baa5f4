"""Print what a run of any verb holds: layers, epochs, what-ifs, simulated kernels, observed sparsity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from lamina.cli import printing

if TYPE_CHECKING:
    from rich.table import Table

    from lamina.record import Run, SimRun, Sparsity
    from lamina.store import Store


def show_all(database: Store, this: Run, form: str, every: bool = True) -> None:
    """Print what the run holds, or that it holds nothing."""
    from lamina.cli.simulate import write
    from lamina.cli.what_if import print_what_ifs
    from lamina.report.table import epochs_table

    title = f"{this.target} on {this.environment.get('device')} (run {this.id})"
    epochs, changes = database.epochs(this.id), database.what_ifs(this.id)
    simulated, observed = database.simulations(this.id), database.sparsities(this.id)
    if epochs and form == "table":
        printing.show(epochs_table(epochs, f"{this.target}: training (run {this.id})", printing.width()))
        for remark in this.remarks:
            typer.echo(remark)
    if changes:
        print_what_ifs(this, changes, form)
    if simulated and form == "table":
        printing.show(_simulations_table(simulated, title))
    elif simulated:
        write([_flat(one) for one in simulated], form)
    if observed and form == "table":
        printing.show(_zeros_table(observed, title))
    elif observed:
        write([{name: value for name, value in vars(one).items() if name != "union_density"} for one in observed], form)
    if database.layers(this.id):
        printing.print_runs(database, [this], form, every)
    elif not (epochs or changes or simulated or observed):
        reason = f": {'; '.join(this.remarks)}" if this.remarks else ""
        typer.echo(f"run {this.id} ({this.verb} of {this.target}, {this.status}) holds nothing{reason}", err=True)


def contents(database: Store, run_id: str) -> list[str]:
    """What a run holds besides layers."""
    kinds = {
        "epochs": database.epochs,
        "what-ifs": database.what_ifs,
        "simulated kernels": database.simulations,
        "observed sparsity": database.sparsities,
        "a study": database.study,
    }
    return [kind for kind, found in kinds.items() if found(run_id)]


def _flat(one: SimRun) -> dict[str, Any]:
    own = {"layer": one.layer, "kernel": one.kernel, "device": one.device, "cycles": one.cycles}
    own |= {"sampled": one.sampled, "relative_error": one.relative_error}
    return own | {name: value for name, value in {**one.config, **one.counters}.items() if name not in own}


def _simulations_table(found: Sequence[SimRun], title: str) -> Table:
    """A line for each simulated kernel, with the settings that differ."""
    from lamina.report.plain_table import Line, plain_table

    def setting(config: Mapping[str, Any], key: str) -> str:
        return str(config.get(key, ""))

    keys = dict.fromkeys(key for one in found for key in one.config if key != "layer")
    varied = [key for key in keys if key != "gemm" and len({setting(one.config, key) for one in found}) > 1]
    lines = []
    for one in found:
        error = f"± {one.relative_error:.1%}" if one.relative_error is not None else ""
        swept = [setting(one.config, key) for key in varied]
        lines.append(Line([one.layer, setting(one.config, "gemm"), one.device, *swept, f"{one.cycles:,}", error]))
    headings = ["layer", "product", "device", *varied, "cycles", "interval"]
    if not any(one.relative_error is not None for one in found):
        headings, lines = headings[:-1], [Line(line.cells[:-1]) for line in lines]
    return plain_table(headings, lines, numeric=[*varied, "cycles"], title=title, width=printing.width())


def _zeros_table(found: Sequence[Sparsity], title: str) -> Table:
    """A line for each activation map: how often it was observed, and its densities."""
    from lamina.report.plain_table import Line, plain_table

    lines = []
    for layer in dict.fromkeys(one.layer for one in found):
        mine = [one for one in found if one.layer == layer]
        density = [one.density for one in mine]
        densities = [f"{value:.3f}" for value in (min(density), max(density), density[-1])]
        lines.append(Line([layer, str(len(mine)), str(mine[-1].iteration), *densities]))
    headings = ["map", "observed", "last at", "lowest density", "highest", "last"]
    return plain_table(headings, lines, numeric=headings[1:], title=title, width=printing.width())

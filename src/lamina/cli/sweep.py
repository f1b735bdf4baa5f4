"""``lamina sweep``: a grid of any verb, or of simulated designs, on this machine or a cluster."""

from __future__ import annotations

import os
import re
import secrets
import sys
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lamina.cli import options
from lamina.cli.handled import handled
from lamina.errors import UsageError, nearest

if TYPE_CHECKING:
    from lamina.pipeline.sweep.engines import Limits

GRID = (
    r"A TOML file: verb, \[base], \[axes], \[\[zip]], filter, seeds; of a simulation also \[baseline]. "
    "Or 'status': how far a sweep is."
)
RUN = "After 'status': the run's id, or the name of the grid; default: the latest sweep."
ENGINE = "local: processes of this machine; ray or dask: a cluster on this machine; ray:ADDRESS or dask:ADDRESS."
ENGINES = ("local", "ray", "dask")
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@handled
def sweep(
    grid: Annotated[str, typer.Argument(metavar="GRID", help=GRID)],
    run: Annotated[str, typer.Argument(metavar="RUN", help=RUN)] = "",
    engine: Annotated[str, typer.Option("--engine", help=ENGINE)] = "local",
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", "-j", min=1, help="Cells in parallel; default: one for each GPU, or simulations for each core."
        ),
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option("--time-limit", min=0.001, help="Seconds after which a cell is killed.")
    ] = None,
    memory_limit: Annotated[
        str, typer.Option("--memory-limit", help="Resident memory over which a cell is killed, such as 8G or 500M.")
    ] = "",
    retries: Annotated[
        int, typer.Option("--retries", min=0, help="Further attempts of a cell whose process or worker was killed.")
    ] = 3,
    store: options.StoreOption = "",
    resume: options.ResumeOption = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run cells again instead of using stored results.")] = False,
    format_: options.FormatOption = "table",
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Draw speedup over SRAM size of designs: a .png or .svg file.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the grid and list its cells; run nothing.")
    ] = False,
) -> None:
    """Run every cell of a grid: a command line of bench, profile, train and others, or a simulated design.

    Results are stored as they come; cells whose results are stored, of an interrupted or another sweep, are not run
    again. A cell that fails is stored with its reason, and the others go on. A grid without a verb simulates designs,
    and compares speedups and SRAM sizes; JSON then holds the designs and the results of all layers.

    Exit codes: 0 done, 1 a cell or a layer has no result, 2 usage, 3 package missing, 70 internal error, 130
    interrupted.

    Examples:

        lamina sweep sweep.toml --workers 2 --figure pareto.svg

        lamina sweep bench.toml --engine ray:auto --time-limit 600 --memory-limit 8G

        lamina sweep status
    """
    from lamina.cli.sweep_cells import show_status, sweep_cells
    from lamina.cli.sweep_designs import require_drawable, sweep_designs
    from lamina.spec.grid import read_grid

    (form,) = options.choices("--format", format_, options.FORMATS)
    if figure is not None:
        require_drawable(figure)
        options.writable("--figure", figure)
    if grid == "status":
        show_status(options.stored_url(store), run or "latest", form)
        return
    if run:
        raise UsageError(f"expected one grid, got {grid!r} and {run!r}")
    limits = (time_limit, memory_bytes(memory_limit))
    require_engine(engine)
    if engine == "ray":
        protect_ray()
    read = read_grid(Path(grid))
    simulated = read.verb == "simulate"
    if figure is not None and not simulated:
        raise UsageError(f"--figure: draws simulated designs, and {grid} is a grid of {read.verb}")
    common = Common(options.store_url(store), engine, workers, limits, retries, resume, fresh, form, dry_run)
    (sweep_designs(read, grid, common, figure) if simulated else sweep_cells(read, grid, common))


@dataclass(frozen=True)
class Common:
    """Options of sweeps of every kind."""

    store: str
    engine: str
    workers: int | None
    limits: tuple[float | None, int | None]
    retries: int
    resume: bool
    fresh: bool
    form: str
    dry_run: bool

    def bounds(self) -> Limits:
        """The limits of each cell."""
        from lamina.pipeline.sweep.engines import Limits

        return Limits(*self.limits)


def require_engine(text: str) -> None:
    """Refuse an unknown engine early.

    Raises:
        UsageError: with the nearest name.
    """
    name, _, address = text.partition(":")
    if name not in ENGINES:
        raise UsageError(f"--engine: {name!r} is unknown: {nearest(name, ENGINES)}")
    if name == "local" and address:
        raise UsageError(f"--engine: local has no address, got {text!r}; --workers is the number of processes")


def results_alone_on_stdout() -> AbstractContextManager[object]:
    """A context in which what is printed goes to stderr, as Ray's messages do not by themselves."""
    return redirect_stdout(sys.stderr)


def protect_ray() -> None:
    """Let a Ray cluster of our own accept this process only, and send no statistics: its ports are open to the network.

    Ray before 2.52 knows no tokens.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def memory_bytes(text: str) -> int | None:
    """Bytes of ``8G``, ``500M`` or a plain number; none for no text.

    Raises:
        UsageError: it is anything else.
    """
    if not text:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found or not float(found[1]):
        raise UsageError(f"--memory-limit: expected a size such as 8G or 500M, got {text!r}")
    return int(float(found[1]) * UNITS[found[2].upper()])

"""Reading records."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, func, select

from lamina.errors import UsageError, nearest
from lamina.record import Coverage, Epoch, Roofs, Run, SimRun, Sparsity, WhatIf
from lamina.store import rows
from lamina.store.schema import (
    coverage,
    environment,
    epoch,
    layer,
    measurement,
    roof,
    run,
    simulation,
    sparsity,
    what_if,
)

_RUNS = select(run, environment.c.content).join(environment)
_LATEST = (run.c.started.desc(), run.c.number.desc())
_NEAR = 20  # how many ids a message about an unknown one chooses from
_SPELLED = {str: "a text", int: "a whole number"}


def require(kind: type, **arguments: object) -> None:
    """Refuse arguments that are not of ``kind``: the database would take the blame for them.

    Raises:
        UsageError: the first of them.
    """
    for name, value in arguments.items():
        if not isinstance(value, kind):
            raise UsageError(f"{name}: expected {_SPELLED[kind]}, got {shorten(repr(value), 60, placeholder='...')}")


def select_runs(
    connection: Connection, limit: int | None, verb: str | None, offset: int = 0, target: str = ""
) -> tuple[Run, ...]:
    """Runs, latest first."""
    require(int, limit=limit or 0, offset=offset)
    query = _filtered(_RUNS, verb, target).order_by(*_LATEST).limit(limit).offset(offset)
    return tuple(rows.run_of(row) for row in connection.execute(query).mappings())


def count_runs(connection: Connection, verb: str | None, target: str = "") -> int:
    """How many runs there are."""
    return int(connection.scalar(_filtered(select(func.count()).select_from(run), verb, target)) or 0)


def _filtered(query: Select[Any], verb: str | None, target: str) -> Select[Any]:
    require(str, verb=verb or "", target=target)
    query = query.where(run.c.verb == verb) if verb else query
    return query.where(run.c.target.contains(target, autoescape=True)) if target else query


def select_verbs(connection: Connection) -> tuple[str, ...]:
    """The verbs of all runs, sorted."""
    return tuple(connection.scalars(select(run.c.verb).distinct().order_by(run.c.verb)))


def select_run(connection: Connection, name: str) -> Run:
    """The run of this id, or the one whose id begins so, or the ``latest``.

    Raises:
        UsageError: no run, or several, fit.
    """
    require(str, run=name)
    latest = select(run.c.id).order_by(*_LATEST)
    # Not LIKE: SQLite's takes capitals for small letters.
    begins = latest.where(func.substr(run.c.id, 1, len(name)) == name)
    found = connection.scalars(latest.limit(1) if name == "latest" else begins.limit(_NEAR)).all()
    exact = name in found or bool(connection.scalar(select(run.c.id).where(run.c.id == name)))
    if not exact and len(found) > 1:
        raise UsageError(f"run {name!r} is ambiguous; expected one of: {', '.join(found)}")
    if not exact and not found:
        known = connection.scalars(latest.limit(_NEAR)).all()
        hint = nearest(name, known) if known else "there are no runs yet; 'lamina bench lenet5' makes one"
        raise UsageError(f"run {name!r} is not in this database; {hint}")
    query = _RUNS.where(run.c.id == (name if exact else found[0]))
    return rows.run_of(connection.execute(query).mappings().one())


def require_run(connection: Connection, run_id: str) -> None:
    """Do nothing.

    Raises:
        UsageError: there is no run of exactly this id.
    """
    require(str, run_id=run_id)
    if not connection.scalar(select(run.c.id).where(run.c.id == run_id)):
        raise UsageError(f"run {run_id!r} is not in this database; begin it, or look its full id up")


def select_unfinished(connection: Connection, fingerprint: str) -> Run | None:
    """The latest run of this work that was not done."""
    require(str, fingerprint=fingerprint)
    query = _RUNS.where(run.c.fingerprint == fingerprint, run.c.status != "done").order_by(*_LATEST).limit(1)
    row = connection.execute(query).mappings().first()
    return rows.run_of(row) if row else None


def layer_rows(connection: Connection, run_id: str) -> Sequence[RowMapping]:
    """Measurements joined with their layers, in the network's order, then as they were written."""
    what = [column for column in layer.c if column.name != "id"]
    query = select(*what, measurement).join(measurement).where(layer.c.run_id == run_id)
    return connection.execute(query.order_by(layer.c.place, measurement.c.id)).mappings().all()


def select_epochs(connection: Connection, run_id: str) -> tuple[Epoch, ...]:
    """Epochs in order."""
    query = select(epoch).where(epoch.c.run_id == run_id).order_by(epoch.c.epoch)
    return tuple(rows.epoch_of(row) for row in connection.execute(query).mappings())


def select_roofs(connection: Connection, run_id: str) -> tuple[Roofs, ...]:
    """Roofs as they were added."""
    query = select(roof).where(roof.c.run_id == run_id).order_by(roof.c.id)
    return tuple(rows.roofs_of(row) for row in connection.execute(query).mappings())


def select_coverages(connection: Connection, run_id: str) -> tuple[Coverage, ...]:
    """Coverages by configuration."""
    query = select(coverage).where(coverage.c.run_id == run_id).order_by(*coverage.primary_key)
    return tuple(rows.coverage_of(row) for row in connection.execute(query).mappings())


def select_what_ifs(connection: Connection, run_id: str) -> tuple[WhatIf, ...]:
    """What-ifs as they were added."""
    query = select(what_if).where(what_if.c.run_id == run_id).order_by(what_if.c.id)
    return tuple(rows.what_if_of(row) for row in connection.execute(query).mappings())


def select_sparsities(connection: Connection, run_id: str) -> tuple[Sparsity, ...]:
    """Observations as they were added."""
    query = select(sparsity).where(sparsity.c.run_id == run_id).order_by(sparsity.c.id)
    return tuple(rows.sparsity_of(row) for row in connection.execute(query).mappings())


def select_simulations(connection: Connection, run_id: str) -> tuple[SimRun, ...]:
    """Simulated kernels as they were added."""
    query = select(simulation).where(simulation.c.run_id == run_id).order_by(simulation.c.id)
    return tuple(rows.simulation_of(row) for row in connection.execute(query).mappings())


def select_simulation(connection: Connection, run_id: str, digest: str) -> SimRun | None:
    """The simulated kernel of this digest."""
    query = select(simulation).where(simulation.c.run_id == run_id, simulation.c.digest == digest)
    row = connection.execute(query).mappings().first()
    return rows.simulation_of(row) if row else None

"""Writing records, within a transaction that the caller ends."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, Insert, Table, delete, exists, insert, select, update
from sqlalchemy.exc import IntegrityError

from lamina.errors import StoreError, UsageError
from lamina.record import Coverage, Epoch, Key, LayerRun, Roofs, Run, SimRun, Sparsity, WhatIf
from lamina.store import rows
from lamina.store.schema import (
    coverage,
    environment,
    epoch,
    kernel,
    layer,
    measurement,
    roof,
    run,
    simulation,
    sparsity,
    what_if,
)

_CONFIGURATION = Key._fields[1:]


def insert_run(connection: Connection, new: Run) -> None:
    """Write a new run.

    Raises:
        UsageError: a run of this id is there.
    """
    if connection.scalar(select(run.c.id).where(run.c.id == new.id)):
        raise UsageError(f"run {new.id!r} is in this database already; a run is begun or imported once")
    environment_id = id_of(connection, environment, rows.environment_row(new), "digest")
    connection.execute(insert(run), rows.run_row(new, environment_id))


def update_run(connection: Connection, run_id: str, **values: object) -> None:
    """Change what may change of a run: its status, its end and its warnings."""
    connection.execute(update(run).where(run.c.id == run_id).values(rows.storable(values)))


def insert_layer_run(connection: Connection, run_id: str, new: LayerRun, created: str) -> int:
    """Write a layer run, and what its layer is unless that is known; return the layer's id.

    Raises:
        StoreError: this was measured in this run before.
    """
    layer_id = id_of(connection, layer, rows.layer_row(run_id, new), "run_id", "digest")
    try:
        connection.execute(insert(measurement), rows.measurement_row(layer_id, new, created))
    except IntegrityError as error:
        clock = f", clock {new.timing.clock}, L2 {new.timing.l2}" if new.timing else ""
        raise StoreError(
            f"run {run_id!r} has {' '.join(map(str, new.key))}{clock} already; measure what is missing, "
            "and let one process at a time write to a run"
        ) from error
    return layer_id


def clear_failures(connection: Connection, run_id: str) -> None:
    """Make way for measuring once more what failed, and forget the kernels of what is no longer there."""
    own = select(layer.c.id).where(layer.c.run_id == run_id)
    failed = (measurement.c.layer_id.in_(own), measurement.c.outcome == "failed")
    gone = connection.execute(delete(measurement).where(*failed)).rowcount
    if gone:
        same = (measurement.c[name] == kernel.c[name] for name in ("layer_id", *_CONFIGURATION))
        homeless = ~exists().where(*same)
        connection.execute(delete(kernel).where(kernel.c.layer_id.in_(own), homeless))


def insert_epoch(connection: Connection, run_id: str, new: Epoch) -> None:
    """Write an epoch; one that is trained again after a restart replaces its former self."""
    row = rows.epoch_row(run_id, new)  # first, since a number beyond 64 bits is no operand of a query either
    connection.execute(delete(epoch).where(epoch.c.run_id == run_id, epoch.c.epoch == new.epoch))
    connection.execute(insert(epoch), row)


def insert_roofs(connection: Connection, run_id: str, new: Roofs) -> None:
    """Write roofs measured for a run."""
    connection.execute(insert(roof), rows.roof_row(run_id, new))


def insert_coverage(connection: Connection, run_id: str, new: Coverage) -> None:
    """Write a coverage; that of a configuration profiled again replaces the former one."""
    row = rows.coverage_row(run_id, new)
    connection.execute(delete(coverage).where(*(column == row[column.name] for column in coverage.primary_key)))
    connection.execute(insert(coverage), row)


def insert_what_if(connection: Connection, run_id: str, new: WhatIf) -> None:
    """Write a what-if.

    Raises:
        StoreError: the run has this change of this layer already.
    """
    _insert_new(connection, what_if, [rows.what_if_row(run_id, new)], f"{new.change} of {new.layer} {new.phase}")


def insert_sparsity(connection: Connection, run_id: str, new: Iterable[Sparsity]) -> None:
    """Write observations.

    Raises:
        StoreError: the run has one of them already.
    """
    _insert_new(connection, sparsity, [rows.sparsity_row(run_id, one) for one in new], "one of these observations")


def insert_simulation(connection: Connection, run_id: str, new: SimRun) -> None:
    """Write a simulated kernel.

    Raises:
        StoreError: the run has it already.
    """
    what = f"{new.kernel} of {new.layer} on {new.device} with this configuration"
    _insert_new(connection, simulation, [rows.simulation_row(run_id, new)], what)


def delete_run(connection: Connection, run_id: str) -> None:
    """Delete a run with all that hangs on it, and its environment if no other run has it."""
    connection.execute(delete(run).where(run.c.id == run_id))
    connection.execute(delete(environment).where(environment.c.id.not_in(select(run.c.environment_id))))


def _insert_new(connection: Connection, table: Table, lines: list[rows.Row], what: str) -> None:
    if lines:
        try:
            connection.execute(insert(table), lines)
        except IntegrityError as error:
            raise StoreError(f"the run has {what} already; nothing was added") from error


def id_of(connection: Connection, table: Table, row: rows.Row, *key: str) -> int:
    """Id of the row with this key, which is written unless another process did."""
    query = select(table.c.id).where(*(table.c[name] == row[name] for name in key))
    found = connection.scalar(query)
    if found is None:
        connection.execute(_insert_missing(connection, table), row)
        found = connection.execute(query).scalar_one()
    return int(found)


def _insert_missing(connection: Connection, table: Table) -> Insert:
    if connection.dialect.name == "sqlite":
        return insert(table)  # there is one writer at a time
    from sqlalchemy.dialects import postgresql  # slow to import

    return postgresql.insert(table).on_conflict_do_nothing()

"""Writing and reading kernel launches and their counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sqlalchemy import Connection, RowMapping, Table, insert, select
from sqlalchemy.exc import IntegrityError

from lamina.errors import StoreError, UsageError, nearest
from lamina.record import Counter, KernelRun
from lamina.store import rows
from lamina.store.schema import counter, kernel, layer

_ORDER = (layer.c.place, layer.c.id, kernel.c.phase, kernel.c.invocation)


def layer_named(connection: Connection, run_id: str) -> Callable[[str], int]:
    """A function from a layer's name to its id.

    It raises ``UsageError`` for a layer that is not in the run, or was measured there with several shapes.
    """
    ids: dict[str, list[int]] = {}
    query = select(layer.c.name, layer.c.id).where(layer.c.run_id == run_id)
    for name, layer_id in connection.execute(query):
        ids.setdefault(name, []).append(layer_id)

    def id_of(name: str) -> int:
        match ids.get(name):
            case [layer_id]:
                return layer_id
            case None:
                raise UsageError(f"layer {name!r} is not in run {run_id!r}: {nearest(name, ids)}")
            case several:
                raise UsageError(
                    f"layer {name!r} has {len(several)} shapes in run {run_id!r}, so its kernels cannot be "
                    "told apart; profile one batch size and implementation in a run"
                )

    return id_of


def insert_kernels(connection: Connection, new: Iterable[tuple[int, KernelRun]]) -> None:
    """Write launches, each with the id of its layer.

    Raises:
        StoreError: a launch is there already.
    """
    lines = [rows.kernel_row(layer_id, launch) for layer_id, launch in new]
    _insert(connection, kernel, lines, "one of these kernel launches")


def insert_counters(connection: Connection, run_id: str, new: Iterable[tuple[int, Counter]]) -> None:
    """Write counters, each with the id of its layer.

    Raises:
        UsageError: the launch that a counter was read for is not in the run.
        StoreError: a counter is there already.
    """
    query = select(kernel.c.layer_id, kernel.c.phase, kernel.c.invocation, kernel.c.id).join(layer)
    launches = {tuple(key): row for *key, row in connection.execute(query.where(layer.c.run_id == run_id))}
    lines = []
    for layer_id, reading in new:
        launch = launches.get((layer_id, reading.phase, reading.invocation))
        if launch is None:
            raise UsageError(
                f"counter {reading.metric}: run {run_id!r} has no launch {reading.invocation} of "
                f"{reading.layer} {reading.phase}; add its kernels first"
            )
        lines.append(rows.counter_row(launch, reading))
    _insert(connection, counter, lines, "one of these counters")


def kernel_rows(connection: Connection, run_id: str) -> Sequence[RowMapping]:
    """Launches with their layers' names, in the network's order, then as they were launched."""
    query = select(kernel, layer.c.name.label("layer")).join(layer).where(layer.c.run_id == run_id)
    return connection.execute(query.order_by(*_ORDER)).mappings().all()


def counter_rows(connection: Connection, run_id: str) -> Sequence[RowMapping]:
    """Counters with their launches, in the order of those, then by name."""
    launch = (kernel.c.layer_id, kernel.c.phase, kernel.c.invocation, layer.c.name.label("layer"))
    query = select(counter, *launch).select_from(counter).join(kernel).join(layer)
    query = query.where(layer.c.run_id == run_id)
    return connection.execute(query.order_by(*_ORDER, counter.c.metric)).mappings().all()


def _insert(connection: Connection, table: Table, lines: list[rows.Row], what: str) -> None:
    if lines:
        try:
            connection.execute(insert(table), lines)
        except IntegrityError as error:
            raise StoreError(f"the run has {what} already; nothing was added") from error

"""Writing and reading kernel launches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from sqlalchemy import Connection, select

from lamina.errors import UsageError, nearest
from lamina.record import KernelRun, Key
from lamina.store.bulk import insert_many
from lamina.store.schema import kernel, layer, measurement

CONFIGURATION = Key._fields[1:]
"""Columns that tell the rows of a layer apart."""
COLUMNS = tuple(column.name for column in kernel.c if column.name != "id")
_ORDER = (layer.c.place, *(kernel.c[name] for name in ("layer_id", *CONFIGURATION, "invocation")))
_COPY = (None, None, None)  # extents of what is no kernel


def layer_of(connection: Connection, run_id: str) -> Callable[[Key], int]:
    """A function from a row's key to the id of its layer.

    It raises ``UsageError`` for a key that the run has no row of, or rows with several shapes.
    """
    measured = (measurement.c[name] for name in CONFIGURATION)
    query = select(layer.c.id, layer.c.name, *measured).join(measurement).where(layer.c.run_id == run_id).distinct()
    ids: dict[Key, list[int]] = {}
    for layer_id, *key in connection.execute(query):
        ids.setdefault(Key(*key), []).append(layer_id)

    def id_of(key: Key) -> int:
        match ids.get(key):
            case [layer_id]:
                return layer_id
            case None:
                asked = spelled(key)
                raise UsageError(f"run {run_id!r} has no row {asked!r}; {nearest(asked, map(spelled, ids))}")
            case several:
                raise UsageError(
                    f"{spelled(key)} has {len(several)} shapes in run {run_id!r}, so its kernels cannot be told "
                    "apart; profile each in a run of its own"
                )

    return id_of


def spelled(key: Key) -> str:
    """A key in words."""
    return " ".join(map(str, key))


def insert_kernels(connection: Connection, new: Iterable[tuple[int, KernelRun]]) -> None:
    """Write launches, each with the id of its layer.

    Raises:
        StoreError: a launch is there already.
    """
    lines = (_cells(layer_id, launch) for layer_id, launch in new)
    insert_many(connection, kernel, COLUMNS, lines, "one of these kernel launches")


def _cells(layer_id: int, launch: KernelRun) -> tuple[object, ...]:
    """What ``COLUMNS`` hold of a launch."""
    return (
        *(layer_id, *launch.key[1:], launch.invocation, launch.name),
        *(*(launch.grid or _COPY), *(launch.block or _COPY)),
        *(launch.registers, launch.shared_bytes, launch.duration_us),
    )


def select_kernels(
    connection: Connection, run_id: str, of_layer: str | None = None
) -> Iterator[tuple[int, int, KernelRun]]:
    """Ids of launch and layer, and the launch; in the network's order, by configuration, then as launched."""
    query = select(kernel.c.id, layer.c.name, *(kernel.c[name] for name in COLUMNS)).join(layer)
    query = query.where(layer.c.run_id == run_id)
    query = query if of_layer is None else query.where(layer.c.name == of_layer)
    keys: dict[tuple[object, ...], Key] = {}  # one for all launches of a row
    for number, name, layer_id, *cells in connection.execute(query.order_by(*_ORDER)):
        key = Key(name, *cells[:5])
        invocation, called, *extents, registers, shared_bytes, duration_us = cells[5:]
        grid, block = (None if None in extent else extent for extent in (tuple(extents[:3]), tuple(extents[3:])))
        same = keys.setdefault(key, key)
        yield number, layer_id, KernelRun(same, invocation, called, grid, block, registers, shared_bytes, duration_us)

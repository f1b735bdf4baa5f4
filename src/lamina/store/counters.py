"""Writing and reading the counters of kernel launches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from sqlalchemy import Connection, func, select

from lamina.errors import StoreError, UsageError
from lamina.record import Counter, Key
from lamina.store import rows, write
from lamina.store.bulk import insert_many
from lamina.store.kernels import CONFIGURATION, select_kernels, spelled
from lamina.store.schema import counter, kernel, layer, metric

_COLUMNS = ("metric_id", "kernel_id", "value")
Reading = tuple[str, float | None, str]
"""A metric's name, value and unit."""


def insert_counters(
    connection: Connection, run_id: str, new: Iterable[tuple[int, Key, int, Iterable[Reading]]]
) -> None:
    """Write what was read for launches, each told by the id of its layer, its key and its invocation.

    Raises:
        UsageError: the launch that a counter was read for is not in the run.
        StoreError: a counter is there already.
    """
    launch_of, metric_of = _launches(connection, run_id), _metrics(connection)

    def lines() -> Iterator[tuple[object, ...]]:
        for layer_id, key, invocation, readings in new:
            launch = launch_of(layer_id, key, invocation)
            for name, value, unit in readings:
                yield metric_of(name, unit), launch, value

    insert_many(connection, counter, _COLUMNS, lines(), "one of these counters")
    _require_one_unit(connection, run_id)


def _launches(connection: Connection, run_id: str) -> Callable[[int, Key, int], int]:
    """A function from a layer's id, a key and an invocation to the id of the launch."""
    columns = (kernel.c[name] for name in ("id", "layer_id", *CONFIGURATION, "invocation"))
    query = select(*columns).join(layer).where(layer.c.run_id == run_id)
    ids: dict[tuple[object, ...], int] = {tuple(key): launch for launch, *key in connection.execute(query)}

    def id_of(layer_id: int, key: Key, invocation: int) -> int:
        found = ids.get((layer_id, *key[1:], invocation))
        if found is None:
            raise UsageError(
                f"counters: run {run_id!r} has no launch {invocation} of {spelled(key)}; add its kernels first"
            )
        return found

    return id_of


def _metrics(connection: Connection) -> Callable[[str, str], int]:
    """A function from a metric's name and unit to its id, which is made as needed."""
    ids: dict[tuple[str, str], int] = {}

    def id_of(name: str, unit: str) -> int:
        known = ids.get((name, unit))
        if known is None:
            row = rows.storable({"name": name, "unit": unit})
            known = ids[name, unit] = write.id_of(connection, metric, row, "name", "unit")
        return known

    return id_of


def _require_one_unit(connection: Connection, run_id: str) -> None:
    """Refuse a counter that a launch has in another unit."""
    several = select(metric.c.name).group_by(metric.c.name).having(func.count() > 1)
    query = select(metric.c.name).select_from(counter).join(metric).join(kernel).join(layer)
    query = query.where(layer.c.run_id == run_id, metric.c.name.in_(several))
    twice = connection.scalar(query.group_by(kernel.c.id, metric.c.name).having(func.count() > 1).limit(1))
    if twice is not None:
        raise StoreError(f"the run has one of these counters already, {twice} in another unit; nothing was added")


def counters_of_launches(
    connection: Connection, run_id: str, of_layer: str | None = None, name: str | None = None
) -> dict[int, list[Reading]]:
    """Ids of launches to what was read for them, by name."""
    found: dict[int, list[Reading]] = {}
    asked = select(metric) if name is None else select(metric).where(metric.c.name == name)
    query = select(counter.c.kernel_id, counter.c.value).select_from(counter).join(kernel).join(layer)
    query = query.where(layer.c.run_id == run_id)
    query = query if of_layer is None else query.where(layer.c.name == of_layer)
    for number, called, unit in connection.execute(asked.order_by(metric.c.name, metric.c.unit)).all():
        for launch, value in connection.execute(query.where(counter.c.metric_id == number)).all():
            found.setdefault(launch, []).append((called, value, unit))
    return found


def select_counters(connection: Connection, run_id: str, of_layer: str | None, name: str | None) -> Iterator[Counter]:
    """Counters in the order of their launches, then by name."""
    found = counters_of_launches(connection, run_id, of_layer, name)
    for number, _, launch in select_kernels(connection, run_id, of_layer):
        for reading in found.get(number, ()):
            yield Counter(launch.key, launch.invocation, *reading)

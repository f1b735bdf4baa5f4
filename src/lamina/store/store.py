"""The trace database: runs and what was measured in them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Engine

from lamina.record import Counter, Epoch, KernelRun, LayerRun, Roofs, Run, Status
from lamina.store import kernels, query, read, rows, trace, write
from lamina.store.connect import address, connect, reading, writing
from lamina.store.faults import explained
from lamina.store.migrate import bring_up_to_date


def open_store(target: str | os.PathLike[str], wait_s: float = 30.0) -> Store:
    """Open a trace database, made or upgraded as needed.

    ``target`` is a path, ``:memory:``, ``sqlite:///PATH`` or ``postgresql://USER@HOST/DATABASE``. A writer
    waits up to ``wait_s`` seconds for other processes.

    Raises:
        StoreError: it is not a database, not lamina's, of a newer lamina, or cannot be read and written.
        MissingError: PostgreSQL cannot be reached, or its driver is not installed.
        UsageError: a URL of something else.
    """
    url = address(target)
    place = str(url.database) if url.drivername == "sqlite" else url.render_as_string()
    with explained(place):
        engine = connect(url, wait_s)
        try:
            bring_up_to_date(engine, place)
        except BaseException:
            engine.dispose()
            raise
    return Store(engine, place)


class Store:
    """An open trace database. Every method that writes has committed when it returns.

    Methods that take a ``run_id`` want the full id, as :meth:`run` finds it from a prefix, and raise
    ``UsageError`` where it is not there. Values that cannot be given back exactly, NaN among them, raise
    ``ValueError``.
    """

    def __init__(self, engine: Engine, place: str):
        self.place = place
        self._engine = engine

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    def begin(self, run: Run) -> None:
        """Write a new run; its layers and the rest follow."""
        with self._writing() as connection:
            write.insert_run(connection, run)

    def resume(self, run_id: str) -> None:
        """Take a run up again: it is running, and what failed in it makes way for another try."""
        with self._writing(run_id) as connection:
            write.update_run(connection, run_id, status="running", finished=None)
            write.clear_failures(connection, run_id)

    def finish(self, run_id: str, status: Status, finished: str, remarks: Iterable[str] = ()) -> None:
        """Say how and when (ISO 8601, UTC) a run ended; ``remarks`` are added to those it has."""
        with self._writing(run_id) as connection:
            said = [*read.select_run(connection, run_id).remarks, *remarks]
            write.update_run(connection, run_id, status=status, finished=finished, remarks=said)

    def add(self, run_id: str, layer: LayerRun) -> None:
        """Write one measured, failed or skipped phase of a layer.

        Raises:
            StoreError: the run has a time for the same ``key``, clock and L2 state.
        """
        with self._writing(run_id) as connection:
            write.insert_layer_run(connection, run_id, layer, rows.now())

    def add_epoch(self, run_id: str, epoch: Epoch) -> None:
        """Write an epoch; one trained again after a restart replaces its former self."""
        with self._writing(run_id) as connection:
            write.insert_epoch(connection, run_id, epoch)

    def add_roofs(self, run_id: str, roofs: Roofs) -> None:
        """Write roofs measured for a run."""
        with self._writing(run_id) as connection:
            write.insert_roofs(connection, run_id, roofs)

    def add_kernels(self, run_id: str, launches: Iterable[KernelRun]) -> None:
        """Write kernel launches of layers that the run has, all or none.

        Raises:
            UsageError: a layer is not in the run, or there with several shapes.
            StoreError: a launch is there already.
        """
        with self._writing(run_id) as connection:
            layer_id = kernels.layer_named(connection, run_id)
            kernels.insert_kernels(connection, ((layer_id(launch.layer), launch) for launch in launches))

    def add_counters(self, run_id: str, counters: Iterable[Counter]) -> None:
        """Write counters of kernel launches that the run has, all or none. Raises as :meth:`add_kernels`."""
        with self._writing(run_id) as connection:
            layer_id = kernels.layer_named(connection, run_id)
            kernels.insert_counters(connection, run_id, ((layer_id(one.layer), one) for one in counters))

    def delete(self, run_id: str) -> None:
        """Delete a run and everything in it."""
        with self._writing(run_id) as connection:
            write.delete_run(connection, run_id)

    def runs(self, limit: int | None = 20, verb: str | None = None) -> tuple[Run, ...]:
        """Runs, latest first."""
        with self._reading() as connection:
            return read.select_runs(connection, limit, verb)

    def run(self, id_or_prefix: str) -> Run:
        """The run of this id, or the only one whose id begins so, or the ``latest``.

        Raises:
            UsageError: no run, or several, fit; the message lists candidates.
        """
        with self._reading() as connection:
            return read.select_run(connection, id_or_prefix)

    def unfinished(self, fingerprint: str) -> Run | None:
        """The latest run of this fingerprint that is not ``done``."""
        with self._reading() as connection:
            return read.select_unfinished(connection, fingerprint)

    def layers(self, run_id: str) -> tuple[LayerRun, ...]:
        """Layer runs in the network's order, then as they were added."""
        with self._reading(run_id) as connection:
            return tuple(rows.layer_run(row) for row in read.layer_rows(connection, run_id))

    def measured(self, run_id: str) -> frozenset[tuple[str, ...]]:
        """What need not be measured again: ``key``, clock and L2 of rows that are ``ok`` or ``skipped``.

        Rows without a time have the empty text as clock and L2 state.
        """
        return frozenset(
            (*layer.key, *((layer.timing.clock, layer.timing.l2) if layer.timing else ("", "")))
            for layer in self.layers(run_id)
            if layer.outcome in ("ok", "skipped")
        )

    def epochs(self, run_id: str) -> tuple[Epoch, ...]:
        """Epochs in order."""
        with self._reading(run_id) as connection:
            return read.select_epochs(connection, run_id)

    def roofs(self, run_id: str) -> tuple[Roofs, ...]:
        """Roofs measured for a run, as they were added."""
        with self._reading(run_id) as connection:
            return read.select_roofs(connection, run_id)

    def kernels(self, run_id: str) -> tuple[KernelRun, ...]:
        """Kernel launches in the network's order, by phase, then as they were launched."""
        with self._reading(run_id) as connection:
            return tuple(rows.kernel_run(row) for row in kernels.kernel_rows(connection, run_id))

    def counters(self, run_id: str) -> tuple[Counter, ...]:
        """Counters in the order of their launches, then by name."""
        with self._reading(run_id) as connection:
            return tuple(rows.counter_of(row) for row in kernels.counter_rows(connection, run_id))

    def query(self, sql: str) -> query.Answer:
        """Names of the columns and the rows that one reading SQL statement gives.

        Raises:
            UsageError: the statement is wrong, or would do anything else than read.
        """
        with self._reading() as connection:
            return query.ask(connection, sql)

    def export_run(self, run_id: str) -> dict[str, Any]:
        """A run with everything in it as one JSON document, for :meth:`import_run` of any database."""
        with self._reading(run_id) as connection:
            return trace.export_trace(connection, run_id)

    def import_run(self, document: Mapping[str, Any]) -> str:
        """Write an exported run, all or nothing; return its id.

        Raises:
            UsageError: the document is none of lamina's, or its run is there already.
        """
        with self._writing() as connection:
            return trace.import_trace(connection, document)

    @contextmanager
    def _reading(self, run_id: str | None = None) -> Iterator[Connection]:
        with explained(self.place), reading(self._engine.connect()) as connection, connection.begin():
            if run_id is not None:
                read.require_run(connection, run_id)
            yield connection

    @contextmanager
    def _writing(self, run_id: str | None = None) -> Iterator[Connection]:
        with explained(self.place), writing(self._engine.connect()) as connection, connection.begin():
            if run_id is not None:
                read.require_run(connection, run_id)
            yield connection

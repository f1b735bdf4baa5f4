"""The trace database: runs and what was measured in them."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Engine

from lamina.errors import StoreError, UsageError
from lamina.record import (
    Counter,
    Coverage,
    Epoch,
    KernelRun,
    LayerRun,
    Roofs,
    Run,
    SimRun,
    Sparsity,
    Status,
    Study,
    Trial,
    WhatIf,
)
from lamina.store import counters as counting
from lamina.store import kernels, query, read, rows, studies, trace, write
from lamina.store.connect import address, connect, reading, sqlite_of, writing
from lamina.store.faults import explained
from lamina.store.migrate import HEAD, bring_up_to_date, current_version


def open_store(target: str | os.PathLike[str], wait_s: float = 30.0, *, read_only: bool = False) -> Store:
    """Open a trace database, made or upgraded as needed.

    ``target`` is a path, ``:memory:``, ``sqlite:///PATH`` or ``postgresql://USER@HOST/DATABASE``. A writer
    waits up to ``wait_s`` seconds for other processes.

    With ``read_only`` nothing is made, upgraded or written, and the right to read is enough. A file that is not there
    is an empty store. A file of an older lamina is read by way of an upgraded copy.

    Raises:
        StoreError: it is not a database, not lamina's, of a newer lamina, or cannot be read and written. With
            ``read_only``, a PostgreSQL database of an older lamina.
        MissingError: PostgreSQL cannot be reached, or its driver is not installed.
        UsageError: a URL of something else.
    """
    url = address(target)
    place = str(url.database) if url.drivername == "sqlite" else url.render_as_string()
    if read_only and url.drivername == "sqlite" and not Path(place).exists():
        url, read_only = address(":memory:"), False
    with explained(place):
        engine = connect(url, wait_s, read_only)
        try:
            if read_only:
                return _opened_to_read(engine, place)
            bring_up_to_date(engine, place)
        except BaseException:
            engine.dispose()
            raise
    return Store(engine, place)


def _opened_to_read(engine: Engine, place: str) -> Store:
    """A store of a database that must not change."""
    found = current_version(engine, place)
    if found == HEAD:
        return Store(engine, place)
    if engine.dialect.name != "sqlite":
        what = f"is of an older lamina (schema {found}, this one reads {HEAD})" if found else "holds no tables yet"
        raise StoreError(f"{place} {what}: who may write to it runs 'lamina store migrate'")
    folder = TemporaryDirectory(prefix="lamina-")
    copy = address(Path(folder.name) / "copy.db")
    with engine.connect() as connection, closing(sqlite3.connect(str(copy.database))) as target:
        sqlite_of(connection).backup(target)
    engine.dispose()
    upgraded = connect(copy, 30.0)
    bring_up_to_date(upgraded, place)
    return Store(upgraded, place, folder)


class Store:
    """An open trace database. Every method that writes has committed when it returns.

    Methods that take a ``run_id`` want the full id, as :meth:`run` finds it from a prefix, and raise
    ``UsageError`` where it is not there. Values that cannot be given back exactly, NaN among them, raise
    ``ValueError``.
    """

    def __init__(self, engine: Engine, place: str, folder: TemporaryDirectory[str] | None = None):
        self.place = place
        self._engine = engine
        self._folder = folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()
        if self._folder is not None:
            self._folder.cleanup()

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
        """Say how and when (ISO 8601, UTC) a run ended; its warnings are added to those it has."""
        with self._writing(run_id) as connection:
            said = [*read.select_run(connection, run_id).remarks, *remarks]
            write.update_run(connection, run_id, status=status, finished=finished, remarks=said)

    def add_remark(self, run_id: str, remark: str) -> None:
        """Write a fact about a run that goes on; `finish` takes those of its end."""
        with self._writing(run_id) as connection:
            said = [*read.select_run(connection, run_id).remarks, remark]
            write.update_run(connection, run_id, remarks=said)

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
        """Write kernel launches of rows that the run has, all or none.

        Raises:
            UsageError: the run has no row of a launch's ``key``, or rows with several shapes.
            StoreError: a launch is there already.
        """
        with self._writing(run_id) as connection:
            layer_id = kernels.layer_of(connection, run_id)
            kernels.insert_kernels(connection, ((layer_id(launch.key), launch) for launch in launches))

    def add_counters(self, run_id: str, counters: Iterable[Counter]) -> None:
        """Write counters of kernel launches that the run has, all or none. Raises as :meth:`add_kernels`."""
        with self._writing(run_id) as connection:
            layer_id = kernels.layer_of(connection, run_id)
            readings = (
                (layer_id(one.key), one.key, one.invocation, ((one.metric, one.value, one.unit),)) for one in counters
            )
            counting.insert_counters(connection, run_id, readings)

    def add_coverage(self, run_id: str, coverage: Coverage) -> None:
        """Write a coverage; that of a configuration profiled again replaces the former one."""
        with self._writing(run_id) as connection:
            write.insert_coverage(connection, run_id, coverage)

    def add_profile(
        self, run_id: str, layers: Iterable[LayerRun], launches: Iterable[KernelRun], coverage: Coverage | None
    ) -> None:
        """Write one profiled configuration, all or nothing: its rows, their kernels, and how complete they are."""
        with self._writing(run_id) as connection:
            for layer in layers:
                write.insert_layer_run(connection, run_id, layer, rows.now())
            layer_id = kernels.layer_of(connection, run_id)
            kernels.insert_kernels(connection, ((layer_id(launch.key), launch) for launch in launches))
            if coverage is not None:
                write.insert_coverage(connection, run_id, coverage)

    def add_what_if(self, run_id: str, what_if: WhatIf) -> None:
        """Write a what-if.

        Raises:
            StoreError: the run has this change and detail for the same layer, phase, precision and batch.
        """
        with self._writing(run_id) as connection:
            write.insert_what_if(connection, run_id, what_if)

    def add_sparsity(self, run_id: str, observations: Iterable[Sparsity]) -> None:
        """Write observations, all or none.

        Raises:
            StoreError: the run has one of this layer, tensor and iteration.
        """
        with self._writing(run_id) as connection:
            write.insert_sparsity(connection, run_id, observations)

    def add_simulation(self, run_id: str, simulation: SimRun) -> None:
        """Write a simulated kernel.

        Raises:
            StoreError: the run has one of this layer, kernel, device and configuration; see :meth:`simulation`.
        """
        with self._writing(run_id) as connection:
            write.insert_simulation(connection, run_id, simulation)

    def add_trial(self, run_id: str, trial: Trial) -> None:
        """Write a candidate of a study; one that is measured or judged again replaces its former self."""
        with self._writing(run_id) as connection:
            studies.insert_trial(connection, run_id, trial)

    def add_study(self, run_id: str, study: Study) -> None:
        """Write the result of a study, without its trials; it replaces a former one."""
        with self._writing(run_id) as connection:
            studies.insert_study(connection, run_id, study)

    def delete(self, run_id: str) -> None:
        """Delete a run and everything in it."""
        with self._writing(run_id) as connection:
            write.delete_run(connection, run_id)

    def runs(
        self, limit: int | None = 20, verb: str | None = None, *, offset: int = 0, target: str = ""
    ) -> tuple[Run, ...]:
        """Runs, latest first, of a verb and with ``target`` in the name of theirs; without the first ``offset``."""
        with self._reading() as connection:
            return read.select_runs(connection, limit, verb, offset, target)

    def count_runs(self, verb: str | None = None, *, target: str = "") -> int:
        """How many runs :meth:`runs` finds without a limit."""
        with self._reading() as connection:
            return read.count_runs(connection, verb, target)

    def verbs(self) -> tuple[str, ...]:
        """The verbs of all runs, sorted."""
        with self._reading() as connection:
            return read.select_verbs(connection)

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

    def measured(self, run_id: str) -> frozenset[tuple[str | int, ...]]:
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

    def kernels(self, run_id: str, layer: str | None = None) -> tuple[KernelRun, ...]:
        """Kernel launches in the network's order, by configuration, then as they were launched."""
        read.require(str, layer=layer or "")
        with self._reading(run_id) as connection:
            return tuple(launch for _, _, launch in kernels.select_kernels(connection, run_id, layer))

    def counters(self, run_id: str, layer: str | None = None, metric: str | None = None) -> tuple[Counter, ...]:
        """Counters in the order of their launches, then by name."""
        read.require(str, layer=layer or "", metric=metric or "")
        with self._reading(run_id) as connection:
            return tuple(counting.select_counters(connection, run_id, layer, metric))

    def coverages(self, run_id: str) -> tuple[Coverage, ...]:
        """Coverages by configuration."""
        with self._reading(run_id) as connection:
            return read.select_coverages(connection, run_id)

    def what_ifs(self, run_id: str) -> tuple[WhatIf, ...]:
        """What-ifs as they were added."""
        with self._reading(run_id) as connection:
            return read.select_what_ifs(connection, run_id)

    def sparsities(self, run_id: str) -> tuple[Sparsity, ...]:
        """Observations as they were added."""
        with self._reading(run_id) as connection:
            return read.select_sparsities(connection, run_id)

    def simulations(self, run_id: str) -> tuple[SimRun, ...]:
        """Simulated kernels as they were added."""
        with self._reading(run_id) as connection:
            return read.select_simulations(connection, run_id)

    def simulation(self, run_id: str, layer: str, kernel: str, device: str, config: Mapping[str, Any]) -> SimRun | None:
        """The simulated kernel of exactly this configuration: what need not be simulated again."""
        digest = rows.simulation_digest(layer, kernel, device, config)
        with self._reading(run_id) as connection:
            return read.select_simulation(connection, run_id, digest)

    def trials(self, run_id: str) -> tuple[Trial, ...]:
        """Candidates of a study as they were added."""
        with self._reading(run_id) as connection:
            return studies.select_trials(connection, run_id)

    def study(self, run_id: str) -> Study | None:
        """The result of a study with its trials; ``None`` where it has not ended."""
        with self._reading(run_id) as connection:
            return studies.select_study(connection, run_id)

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
            document: dict[str, Any] = json.loads(trace.export_trace(connection, run_id))
            return document

    def import_run(self, document: Mapping[str, Any]) -> str:
        """Write an exported run, all or nothing; return its id.

        Raises:
            UsageError: the document is none of lamina's, or its run is there already.
        """
        with self._writing() as connection:
            return trace.import_trace(connection, document)

    def replace_run(self, document: Mapping[str, Any]) -> str:
        """Write an exported run in place of the one of its id, all or nothing; return its id.

        Raises:
            UsageError: the document is none of lamina's.
        """
        with self._writing() as connection:
            write.delete_run(connection, str(document["run"]["id"]))
            return trace.import_trace(connection, document)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection that reads, for what only the kind of the database knows."""
        with self._reading() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A connection that writes, for what only the kind of the database knows."""
        with self._writing() as connection:
            yield connection

    def import_database(self, path: str | os.PathLike[str]) -> tuple[str, ...]:
        """Write all runs of another SQLite database, all or nothing; return their ids, the first to begin first.

        The other database is not changed, also where it is of an older lamina.

        Raises:
            StoreError: it is no database of lamina's, or holds what lamina does not write.
            UsageError: there is no such file, or one of its runs is here already.
        """
        if not Path(path).is_file():
            raise UsageError(f"{os.fspath(path)}: expected a trace database, got no file")
        with open_store(path, read_only=True) as other, self._writing() as connection:
            imported = []
            for run in reversed(other.runs(limit=None)):
                with other._reading(run.id) as source:
                    document = trace.export_trace(source, run.id)
                imported.append(trace.import_trace(connection, document))
            return tuple(imported)

    @contextmanager
    def _reading(self, *run_ids: str) -> Iterator[Connection]:
        with explained(self.place), reading(self._engine.connect()) as connection, connection.begin():
            for run_id in run_ids:
                read.require_run(connection, run_id)
            try:
                yield connection
            except (AttributeError, RecursionError, TypeError, ValueError) as error:
                raise StoreError(
                    f"{self.place} holds a value that lamina did not write ({error}); restore a copy"
                ) from error

    @contextmanager
    def _writing(self, *run_ids: str) -> Iterator[Connection]:
        with explained(self.place), writing(self._engine.connect()) as connection, connection.begin():
            for run_id in run_ids:
                read.require_run(connection, run_id)
            yield connection

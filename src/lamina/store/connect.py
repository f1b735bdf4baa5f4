"""From an address to a connection that behaves alike on SQLite and PostgreSQL."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import QueuePool, StaticPool

from lamina.errors import MissingError, StoreError, UsageError

_CACHE_KIB = 65_536  # of each connection: the indices of a large trace fit
ADDRESSES = "a path, ':memory:', 'sqlite:///PATH' or 'postgresql://USER@HOST/DATABASE'"


def address(target: str | os.PathLike[str]) -> URL:
    """The URL that a path or URL stands for.

    Raises:
        UsageError: it is a URL of something else than SQLite or PostgreSQL, or neither path nor URL.
    """
    if not isinstance(target, str | os.PathLike):
        raise UsageError(f"trace database: expected {ADDRESSES}, got {target!r}")
    text = os.fspath(target)
    if "://" not in text:
        return URL.create("sqlite", database=text)
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise UsageError(f"trace database: expected {ADDRESSES}, got a URL that cannot be read") from error
    if url.drivername == "sqlite":
        return url.set(database=url.database or ":memory:")
    if url.drivername in ("postgresql", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    raise UsageError(f"trace database: expected {ADDRESSES}, got {url.drivername}://")


def connect(url: URL, wait_s: float, read_only: bool = False) -> Engine:
    """An engine for ``url``, as :func:`address` gives it. Creates the parent folder of a file, unless ``read_only``.

    Raises:
        StoreError: the path is a folder, or its parent cannot be made.
        MissingError: the driver for PostgreSQL is not installed.
    """
    return _sqlite(url, wait_s, read_only) if url.drivername == "sqlite" else _postgresql(url, wait_s, read_only)


def reading(connection: Connection) -> Connection:
    """The same connection, each of whose transactions will see one state of the database throughout."""
    if connection.dialect.name == "sqlite":
        return connection  # as they do there anyway
    return connection.execution_options(isolation_level="REPEATABLE READ")


def writing(connection: Connection) -> Connection:
    """The same connection, whose transactions will wait for the right to write when they begin."""
    return connection.execution_options(lamina_writes=True)


def use_write_ahead_log(engine: Engine) -> None:
    """Let readers and a writer of a new SQLite file work at the same time; the file stays so."""
    if engine.dialect.name != "sqlite":
        return
    with engine.connect() as connection:
        sqlite = sqlite_of(connection)
        while sqlite.execute("PRAGMA journal_mode").fetchone() == ("delete",):
            try:
                sqlite.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname != "SQLITE_BUSY":
                    raise
            # The change needs the file for itself and fails where other statements wait: wait with one.
            sqlite.execute("BEGIN EXCLUSIVE")
            sqlite.execute("COMMIT")


@contextmanager
def rebuilding(connection: Connection) -> Iterator[None]:
    """Within, tables may be dropped and made again without losing the rows that refer to them.

    Altering a table on SQLite does that; its switch works only outside a transaction.
    """
    if connection.dialect.name != "sqlite":
        yield
        return
    sqlite = sqlite_of(connection)
    sqlite.execute("PRAGMA foreign_keys=OFF")
    try:
        yield
    finally:
        sqlite.execute("PRAGMA foreign_keys=ON")


def sqlite_of(connection: Connection) -> sqlite3.Connection:
    """What is below SQLAlchemy, for what SQLite alone has."""
    below = connection.connection.driver_connection
    assert isinstance(below, sqlite3.Connection)
    return below


def _sqlite(url: URL, wait_s: float, read_only: bool) -> Engine:
    path = url.database or ""
    if path == ":memory:":
        # One connection for all, as each new one would be a database of its own.
        engine = create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})
    elif read_only:
        engine = create_engine("sqlite://", poolclass=QueuePool, creator=lambda: _opened_to_read(path, wait_s))
    else:
        _make_room(Path(path))
        engine = create_engine(url, connect_args={"timeout": wait_s})

    @event.listens_for(engine, "connect")
    def set_up(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # BEGIN is ours: Python's own comes too late to lock
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA trusted_schema=OFF")  # a file from elsewhere may hold views of any kind
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A reader that turned writer halfway could not wait for another writer; it would fail.
        writes = connection.get_execution_options().get("lamina_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _opened_to_read(path: str, wait_s: float) -> sqlite3.Connection:
    """A connection that cannot write.

    A file in write-ahead mode needs two others beside it. Where they cannot be made, the file is read as it is: without
    the right to write in its folder, no other process of this user changes it.
    """
    uri = f"file:{quote(str(Path(path).absolute()))}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, timeout=wait_s, check_same_thread=False)
    try:
        connection.execute("SELECT 1 FROM sqlite_master").close()
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorname.split("_")[1] not in ("CANTOPEN", "READONLY"):
            raise
        return sqlite3.connect(f"{uri}&immutable=1", uri=True, timeout=wait_s, check_same_thread=False)
    return connection


def _make_room(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_folder = path.is_dir()
    except OSError as error:
        raise StoreError(f"{path}: cannot be made ({error.strerror}); name another place") from error
    if is_folder:
        raise StoreError(f"{path}: expected a database file, got a folder; name a file in it")


def _postgresql(url: URL, wait_s: float, read_only: bool) -> Engine:
    try:
        return create_engine(
            url.update_query_dict({"connect_timeout": str(max(2, round(wait_s)))} | dict(url.query)),
            pool_pre_ping=True,  # a server may drop a connection that waited while a layer was measured
            execution_options={"postgresql_readonly": True} if read_only else {},
        )
    except ImportError as error:
        raise MissingError(
            "PostgreSQL: expected the driver psycopg, which is not installed; pip install 'lamina[postgres]'"
        ) from error

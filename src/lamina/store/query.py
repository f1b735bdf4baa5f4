"""SQL by hand: reading only, one statement at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, ResourceClosedError

from lamina.errors import UsageError
from lamina.store.connect import sqlite_of
from lamina.store.read import require

Answer = tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]
"""Names of the columns, and the rows."""

# Functions that look like tables, json_each among them, want more rights than SELECT: hence what is denied.
_DENIED = {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT}
_OF_THE_STATEMENT = {"SQLITE_ERROR", "SQLITE_AUTH", "SQLITE_READONLY", "SQLITE_MISMATCH", "SQLITE_TOOBIG"}
_LOOKING = {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list"}


def ask(connection: Connection, sql: str) -> Answer:
    """The answer to one reading statement.

    Raises:
        UsageError: the statement is wrong, or would do anything else than read.
    """
    require(str, query=sql)
    with _reading_only(connection):
        try:
            return (
                _answer_of_sqlite(connection, sql) if connection.dialect.name == "sqlite" else _answer(connection, sql)
            )
        except (DBAPIError, sqlite3.Error) as error:
            said = error.orig if isinstance(error, DBAPIError) else error
            if _blames_the_database(said):
                raise
            raise _refusal(" ".join(str(said).split())) from error
        except ResourceClosedError as error:
            raise _refusal("a statement without an answer") from error


def _answer(connection: Connection, sql: str) -> Answer:
    # As written: a % or : stands for itself. PostgreSQL opens a cursor, which takes one query alone.
    asking = connection.execution_options(no_parameters=True, stream_results=True)
    result = asking.exec_driver_sql(sql)
    return tuple(result.keys()), tuple(map(tuple, result.all()))


def _answer_of_sqlite(connection: Connection, sql: str) -> Answer:
    """The driver's own rows, as there may be very many."""
    cursor = sqlite_of(connection).execute(sql)
    if cursor.description is None:
        raise _refusal("a statement without an answer")
    return tuple(column[0] for column in cursor.description), tuple(cursor.fetchall())


@contextmanager
def _reading_only(connection: Connection) -> Iterator[None]:
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")
        yield
        return
    sqlite = sqlite_of(connection)
    sqlite.execute("PRAGMA query_only=ON")
    sqlite.set_authorizer(_authorize)
    try:
        yield
    finally:
        sqlite.set_authorizer(None)
        sqlite.execute("PRAGMA query_only=OFF")


def _authorize(action: int, name: str | None, *_: str | None) -> int:
    denied = action in _DENIED or (action == sqlite3.SQLITE_PRAGMA and name not in _LOOKING)
    return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK


def _blames_the_database(error: BaseException | None) -> bool:
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorname", "SQLITE_ERROR") not in _OF_THE_STATEMENT
    return (getattr(error, "sqlstate", None) or "08")[:2] in ("08", "53", "57", "58", "XX")


def _refusal(got: str) -> UsageError:
    return UsageError(f"query: expected one SELECT on this database, got: {got}")

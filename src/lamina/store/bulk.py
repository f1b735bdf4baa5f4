"""Writing very many rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from sqlalchemy import Connection, Table
from sqlalchemy.exc import IntegrityError

from lamina.errors import StoreError
from lamina.store.rows import plain, storable

_AT_ONCE = 10_000  # rows that are in memory as such


def insert_many(
    connection: Connection, table: Table, columns: Sequence[str], lines: Iterator[tuple[object, ...]], what: str
) -> None:
    """Write lines of the columns' values, none of which is JSON.

    Raises:
        StoreError: one is there already; ``what`` are they.
        ValueError: a value cannot be given back as it is.
    """
    mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"
    names, marks = ", ".join(columns), ", ".join(mark for _ in columns)
    sql = f"INSERT INTO {table.name} ({names}) VALUES ({marks})"
    try:
        while batch := list(islice(lines, _AT_ONCE)):
            for line in batch:
                if not all(map(plain, line)):
                    storable(dict(zip(columns, line, strict=True)))
            connection.exec_driver_sql(sql, batch)
    except IntegrityError as error:
        raise StoreError(f"the run has {what} already; nothing was added") from error

"""Whether a database is whole: its file, its references, and that each of its runs can be read."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import text

from lamina.errors import LaminaError
from lamina.store.connect import sqlite_of
from lamina.store.store import Store


def faults(store: Store) -> Iterator[str]:
    """What is wrong, most basic first; nothing of a database that is whole."""
    with store.connection() as connection:
        if connection.dialect.name == "sqlite":
            sqlite = sqlite_of(connection)
            yield from (
                f"the file is damaged: {row[0]}"
                for row in sqlite.execute("PRAGMA integrity_check(20)")
                if row[0] != "ok"
            )
            yield from (
                f"row {row[1]} of {row[0]} refers to a row of {row[2]} that is not there"
                for row in sqlite.execute("PRAGMA foreign_key_check")
            )
        else:
            connection.execute(text("SELECT 1"))
    for run in store.runs(limit=None):
        try:
            store.export_run(run.id)
        except LaminaError as error:
            yield f"run {run.id} cannot be read: {error}"

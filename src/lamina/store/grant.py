"""The right to read, for roles of PostgreSQL."""

from __future__ import annotations

from sqlalchemy import Connection

from lamina.errors import UsageError
from lamina.store.store import Store


def statements(store: Store, role: str) -> list[str]:
    """What lets a role read every table and view, those of later schemas too.

    Raises:
        UsageError: the database has no roles.
    """
    with store.connection() as connection:
        return _statements(connection, store.place, role)


def grant_reading(store: Store, role: str) -> None:
    """Let a role read.

    Raises:
        UsageError: the database has no roles.
        StoreError: there is no such role, or this user may not grant.
    """
    with store.writing() as connection:
        for one in _statements(connection, store.place, role):
            connection.exec_driver_sql(one.replace("%", "%%"))


def _statements(connection: Connection, place: str, role: str) -> list[str]:
    if connection.dialect.name != "postgresql":
        raise UsageError(f"{place}: expected a URL of PostgreSQL; SQLite has no roles: use the file's permissions")
    quote = connection.dialect.identifier_preparer.quote_identifier
    schema = quote(str(connection.exec_driver_sql("SELECT current_schema()").scalar()))
    return [
        f"GRANT USAGE ON SCHEMA {schema} TO {quote(role)}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {quote(role)}",
        f"ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT SELECT ON TABLES TO {quote(role)}",
    ]

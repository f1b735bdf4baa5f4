"""Bringing a database to the schema of this lamina, in one transaction or not at all."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from lamina.errors import StoreError
from lamina.store.connect import rebuilding, use_write_ahead_log, writing
from lamina.store.schema import metadata
from lamina.store.views import VIEWS

HEAD = "0007"
SCRIPTS = Path(__file__).parent / "migrations"
VERSION_TABLE = "lamina_version"
_LOCK = 0x6C616D696E61  # any number that no other program locks


def bring_up_to_date(engine: Engine, place: str, scripts: Path = SCRIPTS, head: str = HEAD) -> None:
    """Create or upgrade the tables to revision ``head``; do nothing where they are there already.

    Raises:
        StoreError: the database holds other tables, or was made by a newer lamina.
    """
    found = current_version(engine, place, head)
    if found == head:
        return
    if found is None:
        use_write_ahead_log(engine)
    with writing(engine.connect()) as connection, rebuilding(connection), connection.begin():
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        if _version(connection, place, head) != head:  # or another process was faster
            _upgrade(connection, scripts, head)


def current_version(engine: Engine, place: str, head: str = HEAD) -> str | None:
    """The revision of the tables, at most ``head``; ``None`` where there are none.

    Raises:
        StoreError: the database holds other tables, or was made by a newer lamina.
    """
    with engine.begin() as connection:
        return _version(connection, place, head)


def _version(connection: Connection, place: str, head: str) -> str | None:
    """Revision of the tables, ``None`` where there are none yet."""
    tables = inspect(connection).get_table_names()
    if VERSION_TABLE not in tables:
        if tables:
            raise StoreError(
                f"{place} is not a lamina database: it holds {', '.join(sorted(tables)[:3])}; name another"
            )
        return None
    found = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))
    if found is None or not found.isdigit():
        raise StoreError(f"{place}: expected a schema number such as {head}, got {found!r}; restore a copy")
    if int(found) > int(head):
        raise StoreError(f"{place} was made by a newer lamina (schema {found}, this one knows {head}); upgrade lamina")
    if found == HEAD and (lost := metadata.tables.keys() - set(tables)):
        raise StoreError(f"{place} lacks {', '.join(sorted(lost))} of schema {found}; restore a copy")
    return str(found)


def _upgrade(connection: Connection, scripts: Path, head: str) -> None:
    from alembic import command  # slow to import, and most databases are up to date
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    for name in VIEWS:
        connection.execute(text(f"DROP VIEW IF EXISTS {name}"))
    command.upgrade(config, head)
    for name, select in VIEWS.items():
        connection.execute(text(f"CREATE VIEW {name} AS {select}"))
    if connection.dialect.name == "sqlite" and connection.exec_driver_sql("PRAGMA foreign_key_check").first():
        raise StoreError(f"upgrade to schema {head} given up, as rows would refer to nothing; report this")

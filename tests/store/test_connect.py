"""From a path or URL to a database."""

import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text

from lamina.errors import MissingError, UsageError
from lamina.store import open_store
from lamina.store.connect import address, connect


@pytest.mark.parametrize(
    ("target", "driver", "database"),
    [
        ("lamina.db", "sqlite", "lamina.db"),
        ("/a b/ü%20#?.db", "sqlite", "/a b/ü%20#?.db"),
        (Path("a") / "b.db", "sqlite", "a/b.db"),
        (":memory:", "sqlite", ":memory:"),
        ("sqlite://", "sqlite", ":memory:"),
        ("sqlite:///:memory:", "sqlite", ":memory:"),
        ("sqlite:///a/b.db", "sqlite", "a/b.db"),
        ("sqlite:////a/b.db", "sqlite", "/a/b.db"),
        ("postgresql://me@host/traces", "postgresql+psycopg", "traces"),
        ("postgresql+psycopg://me@host/traces", "postgresql+psycopg", "traces"),
    ],
)
def test_addresses(target: str | Path, driver: str, database: str) -> None:
    url = address(target)
    assert (url.drivername, url.database) == (driver, database)


@pytest.mark.parametrize(
    "target", ["mysql://host/x", "postgresql+psycopg2://host/x", "http://x", "://x", "a b://c", None, b"x"]
)
def test_other_addresses_are_refused(target: Any) -> None:
    with pytest.raises(UsageError, match=r"expected a path, ':memory:', 'sqlite:///PATH' or 'postgresql://.*got"):
        open_store(target)


@pytest.mark.parametrize("name", ["a b/ü #?%20.db", "new/folders/here/lamina.db"])
def test_folders_are_made_and_names_taken_as_they_are(tmp_path: Path, name: str) -> None:
    open_store(tmp_path / name).close()
    assert (tmp_path / name).is_file()


def test_a_file_of_nothing_is_a_new_database(store_path: Path) -> None:
    store_path.touch()
    with open_store(store_path) as store:
        assert store.runs() == ()


def test_memory_ends_with_its_store() -> None:
    with open_store(":memory:") as first, open_store(":memory:") as second:
        assert first.query("SELECT count(*) FROM run") == second.query("SELECT count(*) FROM run")
        assert first.place == ":memory:"


def test_sqlite_is_set_up_for_many_processes(store_path: Path) -> None:
    open_store(store_path).close()
    engine = connect(address(store_path), wait_s=30)
    with engine.connect() as connection:
        pragmas = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    engine.dispose()
    assert pragmas == {"journal_mode": "wal", "synchronous": 1, "foreign_keys": 1, "busy_timeout": 30_000}


def test_a_new_file_that_another_process_holds_is_waited_for(store_path: Path) -> None:
    """The switch to a write-ahead log fails at once where other statements wait."""
    other = sqlite3.connect(store_path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    seen = []

    def watch(connection: sqlite3.Connection, _: object) -> None:
        def before(statement: str) -> None:
            seen.append(statement)
            if statement == "BEGIN EXCLUSIVE":  # the store now waits for the lock
                other.execute("ROLLBACK")

        connection.set_trace_callback(before)

    event.listen(Engine, "connect", watch)
    try:
        open_store(store_path, wait_s=0.05).close()
    finally:
        event.remove(Engine, "connect", watch)
    assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert seen.count("PRAGMA journal_mode=WAL") == 2
    other.close()


def test_the_place_of_a_store_hides_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingError, match=r"postgresql\+psycopg://me:\*\*\*@/x\?host=%2Fnowhere") as caught:
        open_store("postgresql://me:hunter2@/x?host=/nowhere")
    assert "hunter2" not in str(caught.value)


def test_without_the_driver_it_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingError, match=r"psycopg, which is not installed; pip install 'lamina\[postgres\]'"):
        open_store("postgresql://me@host/x")


@pytest.mark.postgres
def test_a_plain_postgresql_url_is_enough(postgres_url: str) -> None:
    plain = postgres_url.replace("+psycopg", "")
    with open_store(plain) as store:
        assert store.runs() == ()
    engine = create_engine(postgres_url)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM lamina_version")) == 1
    engine.dispose()

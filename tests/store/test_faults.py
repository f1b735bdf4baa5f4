"""What goes wrong with a database is told in one sentence, and what was written stays."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event, text

from lamina.errors import LaminaError, MissingError, StoreError
from lamina.record import LayerRun, Run
from lamina.store import Store, open_store

MakeRun = Callable[..., Run]
MakeLayerRun = Callable[..., LayerRun]

ROOT = os.geteuid() == 0


def test_not_a_database(store_path: Path) -> None:
    store_path.write_text("layer,median_us\n" * 100)
    with pytest.raises(StoreError, match=f"^{store_path} is not a database; name another file"):
        open_store(store_path)
    assert store_path.read_text().startswith("layer,")


def test_a_damaged_schema_that_is_no_text(store_path: Path) -> None:
    open_store(store_path).close()
    content = bytearray(store_path.read_bytes())
    content[content.index(b"CREATE TABLE") + 3] = 0x80
    store_path.write_bytes(content)
    with pytest.raises(StoreError, match="is damaged; restore a copy"):
        open_store(store_path)


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="expected a database file, got a folder; name a file in it"):
        open_store(tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be made .*; name another place"):
        open_store(tmp_path / "file" / "folder" / "lamina.db")


@contextmanager
def as_nobody() -> Iterator[Path]:
    """A folder that the process cannot write to within, not even where the tests run as root."""
    folder = Path(tempfile.mkdtemp())
    user = os.geteuid()
    try:
        yield folder
    finally:
        os.seteuid(user)
        folder.chmod(0o700)
        shutil.rmtree(folder)


def lock(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    if ROOT:
        os.seteuid(65534)


def test_a_folder_that_may_not_be_written_to() -> None:
    with as_nobody() as folder:
        lock(folder)
        with pytest.raises(StoreError, match="cannot be opened; check that its folder exists and may be written"):
            open_store(folder / "lamina.db")
        with pytest.raises(StoreError, match="cannot be made .Permission denied.; name another place"):
            open_store(folder / "new" / "lamina.db")


def test_a_file_that_may_not_be_written_to(a_run: MakeRun) -> None:
    with as_nobody() as folder:
        with open_store(folder / "lamina.db") as store:
            store.begin(a_run())
        lock(folder)
        refused = pytest.raises(StoreError, match="may not be written to; change|cannot be opened; check")
        with refused, open_store(folder / "lamina.db") as store:
            store.begin(a_run("another"))


def test_a_locked_database(store_path: Path, a_run: MakeRun, a_layer_run: MakeLayerRun) -> None:
    with open_store(store_path, wait_s=0.05) as store:
        store.begin(a_run())
        other = sqlite3.connect(store_path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="is locked by another process; what was written before is safe"):
            store.add("20260102-abc", a_layer_run())
        assert store.layers("20260102-abc") == ()  # reading goes on
        other.execute("ROLLBACK")
        other.close()
        store.add("20260102-abc", a_layer_run())


def test_a_full_disk(store_path: Path, a_run: MakeRun, a_layer_run: MakeLayerRun) -> None:
    open_store(store_path).close()
    pages = store_path.stat().st_size // 4096

    def limit(connection: sqlite3.Connection, _: object) -> None:
        connection.execute(f"PRAGMA max_page_count={pages + 4}")

    event.listen(Engine, "connect", limit)
    try:
        with open_store(store_path) as store:
            store.begin(a_run())
            written = fill(store, a_layer_run)
            assert written > 0
    finally:
        event.remove(Engine, "connect", limit)
    with open_store(store_path) as store:  # there is room again
        store.add("20260102-abc", a_layer_run("one more"))
        assert len(store.layers("20260102-abc")) == written + 1
    assert sqlite3.connect(store_path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def fill(store: Store, a_layer_run: MakeLayerRun) -> int:
    """Add rows until the disk is full; how many that were."""
    rows = [a_layer_run(f"layer{number}", reason="x" * 1000) for number in range(1000)]
    with pytest.raises(StoreError, match="the disk is full; what was written before is safe: free some space"):
        list(map(partial(store.add, "20260102-abc"), rows))
    return len(store.layers("20260102-abc"))


def test_a_damaged_database(store_path: Path, a_run: MakeRun, a_layer_run: MakeLayerRun) -> None:
    with open_store(store_path) as store:
        store.begin(a_run())
        for batch in range(50):
            store.add("20260102-abc", a_layer_run(batch=batch))
    size = store_path.stat().st_size
    with store_path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    with pytest.raises(StoreError, match="is damaged; restore a copy"), open_store(store_path) as store:
        store.layers("20260102-abc")


@pytest.mark.parametrize("host", ["/nowhere", "127.0.0.1&port=1"])
def test_a_server_that_is_not_there(host: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(MissingError, match="cannot be reached; check the server and the URL") as caught:
        open_store(f"postgresql://me@/x?host={host}", wait_s=2)
    assert caught.value.exit_code == 3


@pytest.mark.postgres
@pytest.mark.parametrize("part", ["lamina@/nowhere", "nobody@/postgres"])
def test_a_database_or_user_that_the_server_does_not_know(postgres_server: str, part: str) -> None:
    url = postgres_server.replace("lamina@/{}", part)
    with pytest.raises(MissingError, match='(database|role) "no.*" does not exist'):
        open_store(url)


@pytest.mark.postgres
def test_a_read_only_server(postgres_url: str, a_run: MakeRun) -> None:
    open_store(postgres_url).close()
    with open_store(f"{postgres_url}&options=-cdefault_transaction_read_only%3Don") as store:
        assert store.runs() == ()
        with pytest.raises(StoreError, match="may not be written to: the server is read-only"):
            store.begin(a_run())


@pytest.mark.postgres
def test_a_user_without_rights(postgres_url: str, a_run: MakeRun) -> None:
    open_store(postgres_url).close()
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE ROLE guest LOGIN"))
    try:
        with pytest.raises(StoreError, match="this user lacks the right"):
            open_store(postgres_url.replace("lamina@", "guest@"))
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP ROLE guest"))
        engine.dispose()


@pytest.mark.postgres
def test_a_connection_that_breaks_is_made_again(postgres_url: str, a_run: MakeRun) -> None:
    """As when a server restarts while a long layer is measured."""
    engine = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with open_store(postgres_url) as store, engine.connect() as connection:
        store.begin(a_run("a"))
        others = "pid <> pg_backend_pid() AND datname = current_database()"
        ended = connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))
        assert ended.all()
        store.begin(a_run("b"))
        assert {run.id for run in store.runs()} == {"a", "b"}
    engine.dispose()


@pytest.mark.postgres
def test_a_connection_that_breaks_in_the_middle_of_writing(
    postgres_url: str, a_run: MakeRun, a_layer_run: MakeLayerRun
) -> None:
    admin = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with open_store(postgres_url) as store, admin.connect() as connection:
        store.begin(a_run())
        store.add("20260102-abc", a_layer_run("before"))

        def broken(one: object, cursor: object, statement: str, *_: object) -> None:
            if statement.startswith("INSERT INTO measurement"):
                others = "pid <> pg_backend_pid() AND datname = current_database()"
                connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))

        event.listen(store._engine, "before_cursor_execute", broken)
        with pytest.raises(MissingError, match="cannot be reached; check the server"):
            store.add_profile("20260102-abc", [a_layer_run("one"), a_layer_run("two")], [], None)
        event.remove(store._engine, "before_cursor_execute", broken)
        assert [row.layer for row in store.layers("20260102-abc")] == ["before"]  # all of it or nothing
        store.add_profile("20260102-abc", [a_layer_run("one"), a_layer_run("two")], [], None)
        assert len(store.layers("20260102-abc")) == 3
    admin.dispose()


@pytest.mark.parametrize("body", ["not a database" * 500, b"SQLite format 3\0" + b"\xff" * 5000, b"\0" * 5000])
def test_whatever_the_file_holds_the_error_is_laminas(store_path: Path, body: str | bytes) -> None:
    store_path.write_bytes(body.encode() if isinstance(body, str) else body)
    with pytest.raises(LaminaError, match=str(store_path)):
        open_store(store_path)

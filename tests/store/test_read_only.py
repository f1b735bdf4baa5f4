"""Opened to read: nothing is made, upgraded or written, and the right to read is enough."""

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url

from lamina.errors import StoreError, UsageError
from lamina.record import LayerRun, Run
from lamina.store import open_store
from lamina.store.connect import address, connect
from lamina.store.grant import grant_reading, statements
from lamina.store.migrate import SCRIPTS, bring_up_to_date

from .test_faults import as_nobody, lock

MakeRun = Callable[..., Run]
MakeLayerRun = Callable[..., LayerRun]


def test_a_file_in_a_folder_that_may_not_be_written_to(a_run: MakeRun, a_layer_run: MakeLayerRun) -> None:
    with as_nobody() as folder:
        path = folder / "lamina.db"
        run = a_run()
        with open_store(path) as store:
            store.begin(run)
            store.add(run.id, a_layer_run())
        lock(folder)
        with open_store(path, read_only=True) as store:
            assert [one.id for one in store.runs()] == [run.id] and len(store.layers(run.id)) == 1
            with pytest.raises(StoreError, match="may not be written to"):
                store.begin(a_run("another"))
        assert [one.name for one in folder.iterdir()] == ["lamina.db"]


def test_a_writer_beside_is_seen(store_path: Path, a_run: MakeRun) -> None:
    with open_store(store_path) as writer, open_store(store_path, read_only=True) as reader:
        assert reader.runs() == ()
        writer.begin(a_run())
        assert len(reader.runs()) == 1


def test_a_file_that_is_not_there_is_an_empty_store(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lamina.db"
    with open_store(path, read_only=True) as store:
        assert store.runs() == () and store.place == str(path)
    assert not path.parent.exists()


def test_a_file_of_an_older_lamina_stays_so(store_path: Path, a_run: MakeRun) -> None:
    old = connect(address(store_path), 1.0)
    bring_up_to_date(old, "old", SCRIPTS, "0005")
    old.dispose()
    before = store_path.read_bytes()
    with open_store(store_path, read_only=True) as store:
        assert store.runs() == () and store.place == str(store_path)
    assert store_path.read_bytes() == before


@pytest.mark.postgres
def test_a_role_that_may_only_read(postgres_url: str, a_run: MakeRun) -> None:
    role = 'read"er'
    admin = create_engine(make_url(postgres_url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with open_store(postgres_url) as store:
        store.begin(a_run())
        with admin.connect() as connection:
            connection.exec_driver_sql('CREATE ROLE "read""er" LOGIN')
        grant_reading(store, role)
    theirs = make_url(postgres_url).set(username=role).render_as_string(hide_password=False)
    with open_store(theirs, read_only=True) as store:
        assert len(store.runs()) == 1
        with pytest.raises(StoreError, match="may not be written to"):
            store.begin(a_run("another"))
    with open_store(theirs) as store, pytest.raises(StoreError, match="lacks the right"):
        store.begin(a_run("another"))
    with admin.connect() as connection:
        connection.exec_driver_sql('DROP OWNED BY "read""er"')
        connection.exec_driver_sql('DROP ROLE "read""er"')
    admin.dispose()


@pytest.mark.postgres
def test_tables_are_not_made(postgres_url: str) -> None:
    with pytest.raises(StoreError, match="holds no tables yet: who may write to it runs 'lamina store migrate'"):
        open_store(postgres_url, read_only=True)


def test_sqlite_has_no_roles(store_path: Path) -> None:
    with open_store(store_path) as store, pytest.raises(UsageError, match="SQLite has no roles"):
        statements(store, "reports")

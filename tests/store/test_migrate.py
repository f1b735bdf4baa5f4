"""From no schema or an older one to this lamina's, at once or not at all."""

import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, inspect, text
from sqlalchemy.exc import DBAPIError

from lamina.errors import StoreError
from lamina.record import Key, LayerRun, Run
from lamina.store import migrate, open_store
from lamina.store.connect import address as address_of
from lamina.store.connect import connect
from lamina.store.schema import metadata
from lamina.store.views import VIEWS

MakeRun = Callable[..., Run]
MakeLayerRun = Callable[..., LayerRun]

# Alters a table that others refer to, which on SQLite means to copy and drop it.
NEXT = """
import os, signal
import sqlalchemy as sa
from alembic import op

revision = "9001"
down_revision = "{head}"

def upgrade() -> None:
    with op.batch_alter_table("run", recreate="auto") as run:
        run.add_column(sa.Column("team", sa.Text(), server_default="ours", nullable=False))
        run.alter_column("command", new_column_name="call")
    op.create_table("team", sa.Column("name", sa.Text(), primary_key=True))
    {end}
"""


@pytest.fixture
def engine(shared_address: str) -> Iterator[Engine]:
    """A plain way to the database, past the store."""
    engine = create_engine(address_of(shared_address))
    yield engine
    engine.dispose()


@pytest.fixture
def later(tmp_path: Path) -> Callable[..., Path]:
    """Makes the revisions of a later lamina, the last of which ends as told."""

    def make(end: str = "") -> Path:
        scripts = tmp_path / "migrations"
        shutil.copytree(migrate.SCRIPTS, scripts, dirs_exist_ok=True)
        (scripts / "versions" / "next.py").write_text(NEXT.format(head=migrate.HEAD, end=end))
        return scripts

    return make


@pytest.fixture
def stocked(shared_address: str, a_run: MakeRun, a_layer_run: MakeLayerRun) -> str:
    """The address of a database of this lamina with a run."""
    with open_store(shared_address) as store:
        store.begin(a_run())
        store.add("20260102-abc", a_layer_run())
    return shared_address


def differences(engine: Engine, wanted: MetaData) -> list[object]:
    with engine.connect() as connection:
        options = {"version_table": migrate.VERSION_TABLE, "compare_server_default": True}
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), wanted))


def test_the_revisions_make_the_tables_of_the_schema(shared_address: str, engine: Engine) -> None:
    open_store(shared_address).close()
    assert differences(engine, metadata) == []
    assert set(inspect(engine).get_view_names()) == VIEWS.keys()


def test_a_difference_would_be_seen(shared_address: str, engine: Engine) -> None:
    open_store(shared_address).close()
    wanted = MetaData(naming_convention=metadata.naming_convention)
    for table in metadata.tables.values():
        table.to_metadata(wanted)
    wanted.tables["run"].append_column(Column("more", Integer))
    Table("another", wanted, Column("id", Integer, primary_key=True))
    assert len(differences(engine, wanted)) == 2


def test_head_is_the_last_revision_and_they_are_numbered() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.SCRIPTS))
    revisions = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert revisions[0] == migrate.HEAD
    assert revisions[::-1] == [f"{number:04}" for number in range(1, len(revisions) + 1)]


FIRST = [
    "INSERT INTO environment VALUES (1, 'd', 'a chip', NULL, NULL, '2.13.0', NULL, NULL, '{}')",
    "INSERT INTO run VALUES (1, 'old', 'bench', 't', 'c', '2026', NULL, 'done', 'f', '{}', '[]', 1, NULL)",
    "INSERT INTO layer VALUES (1, 'old', 'd1', 'conv1', 'convolution', 0, '[[1, 3]]', '[1, 4]', 7)",
    "INSERT INTO layer VALUES (2, 'old', 'd2', 'fc', 'linear', 1, '[[1, 4]]', '[1, 2]', 8)",
    *(
        f"INSERT INTO measurement VALUES ({number}, {layer}, '{phase}', 'dense', '{precision}', 'nchw', 16, 'cuda', "
        f"'ok', '', '{clock}', 'warm', 1.5, 1, 2, 9, 1, 10, 20, NULL, 30, NULL, NULL, '2026')"
        for number, layer, phase, precision, clock in [
            (1, 1, "forward", "tf32", "cupti"), (2, 1, "forward", "tf32", "events"),
            (3, 2, "forward", "tf32", "cupti"), (4, 2, "forward", "bf16", "cupti"),
        ]
    ),
    "INSERT INTO measurement VALUES (5, 2, 'backward_data', 'sparse', 'tf32', 'nchw', 16, 'cuda', 'skipped', 'none', "
    "NULL, NULL, NULL, NULL, NULL, NULL, NULL, 10, 20, NULL, 30, NULL, NULL, '2026')",
    *(
        f"INSERT INTO kernel VALUES ({number}, {layer}, '{phase}', 0, 'k{number}', 1, 2, 3, 4, 5, 6, 7, 8, 9.5)"
        for number, layer, phase in [(101, 1, "forward"), (102, 2, "forward"), (103, 1, "backward_data")]
    ),
    "INSERT INTO counter VALUES (101, 'bytes', 64.0, 'byte')",
    "INSERT INTO counter VALUES (101, 'rate', NULL, '%')",
    "INSERT INTO counter VALUES (102, 'bytes', 32.0, 'byte')",
]  # fmt: skip


def test_the_first_schema_is_upgraded_with_its_kernels(shared_address: str, engine: Engine) -> None:
    with engine.begin() as connection:
        config = Config(attributes={"connection": connection})
        config.set_main_option("script_location", str(migrate.SCRIPTS))
        command.upgrade(config, "0001")
        for row in FIRST:
            connection.execute(text(row))
    known, unknown = Key("conv1", "forward", "dense", "tf32", "nchw", 16), ("", "", "", 0)
    with open_store(shared_address) as store, open_store(":memory:") as other:
        launches = store.kernels("old")
        assert {launch.name: launch.key for launch in launches} == {
            "k101": known,
            "k102": Key("fc", "forward", *unknown),  # measured in two precisions
            "k103": Key("conv1", "backward_data", *unknown),  # never measured
        }
        assert {(launch.grid, launch.block, launch.duration_us) for launch in launches} == {((1, 2, 3), (4, 5, 6), 9.5)}
        assert [(one.key.layer, one.metric, one.value, one.unit) for one in store.counters("old")] == [
            ("conv1", "bytes", 64.0, "byte"), ("conv1", "rate", None, "%"), ("fc", "bytes", 32.0, "byte"),
        ]  # fmt: skip
        assert {layer.live_bytes for layer in store.layers("old")} == {None}
        ran = {(row.outcome, row.impl, row.executed_impl, row.selection_reason) for row in store.layers("old")}
        assert ran == {("ok", "dense", "dense", ""), ("skipped", "sparse", "", "")}
        store.add_kernels("old", [replace(launches[0], key=known, invocation=1, grid=None, block=None)])
        other.import_run(store.export_run("old"))
        assert other.kernels("old") == store.kernels("old")
    assert differences(engine, metadata) == []


def upgrade(target: str, scripts: Path) -> None:
    """What opening the database would do in the later lamina."""
    engine = connect(address_of(target), wait_s=30)
    try:
        migrate.bring_up_to_date(engine, "here", scripts, "9001")
    finally:
        engine.dispose()


def content(engine: Engine) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table, and the columns of ``run``."""
    with engine.connect() as connection:
        tables = inspect(connection).get_table_names()
        rows = {name: [tuple(row) for row in connection.execute(text(f"SELECT * FROM {name}"))] for name in tables}
        return rows | {"columns": [(column["name"],) for column in inspect(connection).get_columns("run")]}


def test_an_older_database_is_upgraded_with_all_its_rows(
    stocked: str, engine: Engine, later: Callable[..., Path]
) -> None:
    before = content(engine)
    upgrade(stocked, later())
    after = content(engine)
    assert after["measurement"] == before["measurement"]
    assert len(before["measurement"]) == 1
    assert after["lamina_version"] == [("9001",)]
    with engine.connect() as connection:
        assert connection.execute(text("SELECT id, call, team FROM run")).all() == [
            ("20260102-abc", "lamina bench alexnet", "ours")
        ]
        assert connection.execute(text("SELECT run_id, layer FROM layer_table")).all() == [("20260102-abc", "conv1")]


def test_rows_of_an_upgraded_database_still_hang_together(
    stocked: str, engine: Engine, later: Callable[..., Path]
) -> None:
    upgrade(stocked, later())
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.execute(text("PRAGMA foreign_keys=ON"))
        connection.execute(text("DELETE FROM run"))
        assert connection.scalar(text("SELECT count(*) FROM measurement")) == 0


@pytest.mark.parametrize(
    ("end", "error"),
    [("raise RuntimeError('told to')", RuntimeError), ("op.execute('SELECT 1 FROM nowhere')", DBAPIError)],
)
def test_an_upgrade_that_fails_changes_nothing(
    stocked: str, engine: Engine, later: Callable[..., Path], a_run: MakeRun, end: str, error: type[Exception]
) -> None:
    before = content(engine)
    with pytest.raises(error, match="told to|nowhere"):
        upgrade(stocked, later(end))
    assert content(engine) == before
    with open_store(stocked) as store:
        assert store.runs() == (a_run(),)
        assert len(store.query("SELECT * FROM layer_table")[1]) == 1


KILLED = """
import sys
from pathlib import Path
from lamina.store import migrate
from lamina.store.connect import address, connect
migrate.bring_up_to_date(connect(address(sys.argv[1]), 30), "here", Path(sys.argv[2]), "9001")
"""


def test_a_killed_upgrade_changes_nothing_and_can_be_repeated(
    stocked: str,
    engine: Engine,
    later: Callable[..., Path],
    a_run: MakeRun,
    process: Callable[..., "subprocess.Popen[str]"],
) -> None:
    before = content(engine)
    killed = process(KILLED, stocked, str(later("os.kill(os.getpid(), signal.SIGKILL)")))
    _, errors = killed.communicate(timeout=100)
    assert (killed.returncode, errors) == (-signal.SIGKILL, "")
    assert content(engine) == before
    with open_store(stocked) as store:
        assert store.runs() == (a_run(),)
    upgrade(stocked, later())
    assert content(engine)["lamina_version"] == [("9001",)]
    if Path(stocked).is_file():
        assert sqlite3.connect(stocked).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_newer_database_is_left_alone(stocked: str, engine: Engine, later: Callable[..., Path]) -> None:
    upgrade(stocked, later())
    before = content(engine)
    with pytest.raises(StoreError, match=r"made by a newer lamina \(schema 9001, .*\); upgrade lamina"):
        open_store(stocked)
    assert content(engine) == before


@pytest.mark.parametrize("version", ["('garbage')", None])
def test_a_schema_number_that_is_none_is_told(stocked: str, engine: Engine, version: str | None) -> None:
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM lamina_version"))
        if version:
            connection.execute(text(f"INSERT INTO lamina_version VALUES {version}"))
    with pytest.raises(StoreError, match="expected a schema number such as"):
        open_store(stocked)


@pytest.mark.parametrize("table", ["run", "alembic_version", "studies"])
def test_another_programs_database_is_left_alone(shared_address: str, engine: Engine, table: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {table} (id INTEGER)"))
    with pytest.raises(StoreError, match=f"is not a lamina database: it holds {table}; name another"):
        open_store(shared_address)
    assert inspect(engine).get_table_names() == [table]
    if Path(shared_address).is_file():
        assert sqlite3.connect(shared_address).execute("PRAGMA journal_mode").fetchone() == ("delete",)

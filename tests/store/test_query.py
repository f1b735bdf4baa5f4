"""SQL by hand reads and does nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lamina.errors import UsageError
from lamina.record import LayerRun, Run, Timing
from lamina.store import Store, open_store

MakeRun = Callable[..., Run]
MakeLayerRun = Callable[..., LayerRun]


@pytest.fixture
def stocked(store: Store, a_run: MakeRun, a_layer_run: MakeLayerRun) -> Store:
    """A store with a run of two layers."""
    store.begin(a_run())
    store.add("20260102-abc", a_layer_run("conv1"))
    store.add("20260102-abc", a_layer_run("100%:fc", place=1, flops=None, timing=None, outcome="failed"))
    return store


@pytest.mark.parametrize(
    ("sql", "columns", "rows"),
    [
        ("SELECT 1 AS one, 'two' AS two", ("one", "two"), ((1, "two"),)),
        ("select name from layer order by place", ("name",), (("conv1",), ("100%:fc",))),
        ("SELECT name FROM layer WHERE name LIKE '100%:%' -- 100%", ("name",), (("100%:fc",),)),
        ("SELECT name FROM layer WHERE name = ':name'", ("name",), ()),
        ("WITH t AS (SELECT 2 AS n) SELECT n * n AS square FROM t;", ("square",), ((4,),)),
        ("SELECT count(*) AS n FROM layer_table JOIN run ON run.id = run_id", ("n",), ((2,),)),
    ],
)
def test_a_select_is_answered(stocked: Store, sql: str, columns: tuple[str, ...], rows: tuple[object, ...]) -> None:
    assert stocked.query(sql) == (columns, rows)


REFUSED = [
    "DELETE FROM run",
    "UPDATE run SET status = 'done'",
    "INSERT INTO epoch VALUES ('20260102-abc', 1, 1, 1, 1, 1, 1, 1, 1)",
    "INSERT INTO epoch VALUES ('20260102-abc', 1, 1, 1, 1, 1, 1, 1, 1) RETURNING epoch",
    "DELETE FROM run RETURNING id",
    "WITH t AS (SELECT 1) DELETE FROM run",
    "DROP VIEW layer_table",
    "DROP TABLE counter",
    "CREATE TABLE mine (a INTEGER)",
    "CREATE TEMP TABLE mine (a INTEGER)",
    "SELECT 1; DELETE FROM run",
    "DELETE FROM run; SELECT 1",
    "COMMIT; DELETE FROM run",
    "COMMIT",
    "ROLLBACK",
    "BEGIN",
    "SAVEPOINT a",
    "VACUUM",
    "SELEKT 1",
    "SELECT * FROM nowhere",
    "SELECT * FROM run WHERE id = ?",
    "SELECT * FROM run WHERE id = :id",
    "",
    "-- nothing",
]


def test_anything_else_is_refused_and_changes_nothing(stocked: Store, a_run: MakeRun) -> None:
    before = stocked.export_run("20260102-abc")
    for number, sql in enumerate(REFUSED):
        with pytest.raises(UsageError, match="query: expected one SELECT on this database, got: "):
            stocked.query(sql)
        assert stocked.export_run("20260102-abc") == before, sql
        stocked.begin(a_run(f"after{number}"))  # writing goes on as before
        with pytest.raises(UsageError, match="mine"):
            stocked.query("SELECT * FROM mine")
    assert stocked.query("SELECT count(*) FROM layer_table")[1] == ((2,),)


def test_sqlite_opens_and_writes_no_other_file(store_path: Path) -> None:
    other = store_path.with_name("other.db")
    with open_store(store_path) as store:
        for sql in (f"ATTACH '{other}' AS other", f"VACUUM INTO '{other}'", "PRAGMA query_only=OFF"):
            with pytest.raises(UsageError, match="expected one SELECT"):
                store.query(sql)
    assert not other.exists()


WAYS_ROUND = [
    "SET TRANSACTION READ WRITE",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
    "SET TRANSACTION READ WRITE; DELETE FROM run",
    "SELECT set_config('transaction_read_only', 'off', true)",
    "WITH gone AS (DELETE FROM run RETURNING id) SELECT * FROM gone",
    "SELECT 1 INTO mine",
    "COPY run TO PROGRAM 'true'",
    "DO $$ BEGIN DELETE FROM run; END $$",
]


@pytest.mark.postgres
def test_postgresql_has_no_way_round(postgres_store: Store, a_run: MakeRun) -> None:
    postgres_store.begin(a_run())
    for sql in WAYS_ROUND:
        with pytest.raises(UsageError, match="expected one SELECT"):
            postgres_store.query(sql)
    assert postgres_store.runs() == (a_run(),)


def test_sqlite_tells_its_tables(store_path: Path) -> None:
    with open_store(store_path) as store:
        columns, rows = store.query("PRAGMA table_info(run)")
        assert rows[columns.index("name")]
        assert "fingerprint" in {row[1] for row in rows}
        assert store.query("SELECT value FROM json_each('[1, 2]')")[1] == ((1,), (2,))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"flops": None},
        {"flops": 0, "bytes": 0},
        {"bytes": None, "timing": Timing("events", "warm", 0.0, 0.0, 0.0, 3, 2)},
        {"timing": None, "outcome": "failed", "reason": "out of memory"},
    ],
)
def test_the_layer_table_says_what_the_record_says(
    store: Store, a_run: MakeRun, a_layer_run: MakeLayerRun, changes: dict[str, object]
) -> None:
    run, layer = a_run(), a_layer_run(**changes)
    store.begin(run)
    store.add(run.id, layer)
    columns, (values,) = store.query("SELECT * FROM layer_table")
    row = dict(zip(columns, values, strict=True))
    for name in ("gflops", "gbs"):
        expected = getattr(layer, name)
        assert row[name] == (expected if expected is None else pytest.approx(expected, rel=1e-12))
    record = {**vars(layer), **(vars(layer.timing) if layer.timing else {})}
    shapes = {"inputs", "output"}
    shared = (row.keys() & record.keys()) - shapes
    assert {name: row[name] for name in shared} == {name: record[name] for name in shared}
    assert record.keys() - row.keys() == {"timing"}
    assert (row["run_id"], row["torch"], row["lamina_commit"]) == (run.id, "2.13.0", "c0ffee")

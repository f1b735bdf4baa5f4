"""Whatever a document or a database from elsewhere holds: it arrives whole, or an error says why and nothing did."""

import copy
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamina.errors import LaminaError, StoreError, UsageError
from lamina.record import Counter, Coverage, KernelRun, LayerRun, Run, SimRun, Sparsity, Timing, WhatIf
from lamina.store import Store, open_store, parse_document
from lamina.store.schema import metadata

MakeRun = Callable[..., Run]
MakeLayerRun = Callable[..., LayerRun]

ID = "20260102-abc"
DEEP = object()
NASTY = [
    None, True, -1, 0, 2**63, -(2**70), 10**400, 1.5, float("nan"), float("inf"), "", "NaN", "Infinity", "latest",
    "a\0b", "\ud800", "x" * 100_000, "'; DROP TABLE run; --", [], [[]], {}, {"": None}, {"a": {"b": 2**80}}, DEEP,
    b"raw",
]  # fmt: skip


def made(nasty: Any) -> Any:
    """A copy that may be changed; of ``DEEP``, thousands of lists one in the other."""
    if nasty is not DEEP:
        return copy.deepcopy(nasty)
    nested: list[Any] = []
    for _ in range(5000):
        nested = [nested]
    return nested


def fill(store: Store, run: Run, layer: LayerRun) -> None:
    """A run with something of everything."""
    store.begin(run)
    store.add(run.id, layer)
    launch = KernelRun(layer.key, 0, "gemm", (7, 2, 1), (128, 1, 1), 96, 0, 31.25)
    store.add_kernels(run.id, [launch, KernelRun(layer.key, 1, "Memset", None, None, None, None, 1.5)])
    store.add_counters(run.id, [Counter(layer.key, 0, name, 1.5, "byte") for name in ("a", "b")])
    timing = Timing("events", "warm", 10.0, 9.5, 11.0, 20)
    store.add_coverage(run.id, Coverage("dense", "fp32", "nchw", 32, 2, 62.5, {"stray": 1.5}))
    store.add_what_if(run.id, WhatIf("fusion", "x", "fc", "forward", "tf32", 32, timing, 8.0, "rule", timing))
    store.add_sparsity(run.id, [Sparsity("conv1", "output", 100, 0.5, {2: 0.75}, 3)])
    store.add_simulation(run.id, SimRun("conv1", "gemm", "tiny", {"ways": 4}, 10**12, {"hits": 7}))


@pytest.fixture(scope="module")
def valid(a_run: MakeRun, a_layer_run: MakeLayerRun) -> dict[str, Any]:
    """The document of a run with something of everything."""
    with open_store(":memory:") as store:
        fill(store, a_run(), a_layer_run(peak_bytes=7, rel_error=0.5))
        return store.export_run(ID)


@pytest.fixture(scope="module")
def target() -> Iterator[Store]:
    """A store that is empty before and after each import."""
    with open_store(":memory:") as store:
        yield store


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything in a document, from the inside out."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if len(path) > 10:
        return
    for name, one in below:
        yield from places(one, (*path, name))
        yield (*path, name)


@st.composite
def changes(draw: st.DrawFn) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """One to three changes anywhere: something nasty, something of elsewhere, twice, or gone."""
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["nasty", "elsewhere", "twice", "gone", "more"]),
                st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True), st.sampled_from(NASTY),
            ),
            min_size=1, max_size=3,
        )
    )  # fmt: skip

    def apply(document: dict[str, Any]) -> dict[str, Any]:
        changed = copy.deepcopy(document)
        for kind, here, there, nasty in steps:
            paths = list(places(changed))
            if not paths:
                break
            path, other = (paths[int(share * len(paths))] for share in (here, there))
            above = at(changed, path[:-1])
            match kind:
                case "nasty":
                    above[path[-1]] = made(nasty)
                case "elsewhere":
                    above[path[-1]] = copy.deepcopy(at(document, other)) if exists(document, other) else made(nasty)
                case "twice" if isinstance(above, list):
                    above.append(above[path[-1]])
                case "more" if isinstance(above, dict):
                    above["more"] = 1
                case _:
                    del above[path[-1]]
        return changed

    return apply


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        value = value[name]
    return value


def exists(value: Any, path: tuple[Any, ...]) -> bool:
    return path in set(places(value))


def sizes(store: Store) -> dict[str, int]:
    return {table: store.query(f"SELECT count(*) FROM {table}")[1][0][0] for table in metadata.tables}


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(change=changes())
def test_a_changed_document_arrives_whole_or_not_at_all(
    target: Store, valid: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    before = sizes(target)
    try:
        run_id = target.import_run(change(valid))
    except LaminaError:
        assert sizes(target) == before
        return
    arrived = target.export_run(run_id)
    target.delete(run_id)
    assert target.import_run(arrived) == run_id
    assert target.export_run(run_id) == arrived
    target.delete(run_id)
    assert sizes(target) | {"metric": 0} == dict.fromkeys(metadata.tables, 0)


@pytest.mark.parametrize("name", ["config", "environment"])
def test_a_document_nested_without_end_is_refused(target: Store, valid: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError, match="more than 100 levels"):
        target.import_run({**valid, "run": {**valid["run"], name: {"a": made(DEEP)}}})
    assert target.runs() == ()


def text_of(document: dict[str, Any]) -> str:
    return json.dumps(document, allow_nan=False)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_text_is_refused(valid: dict[str, Any], share: float) -> None:
    text = text_of(valid)
    with pytest.raises(UsageError, match="whole and as it was written"):
        parse_document(text[: int(share * len(text))])


def test_a_text_is_what_it_says(valid: dict[str, Any]) -> None:
    assert parse_document(text_of(valid)) == valid


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"run": 1, "format": 2, "run": 2}', "'run' twice in one object"),
        ('{"run": {"config": {"a": {"b": 1, "b": 1}}}}', "'b' twice in one object"),
        ('{"run": NaN}', "NaN, which is no JSON"),
        ('{"run": [-Infinity]}', "-Infinity, which is no JSON"),
        ("[" * 200_000, "nested too deeply"),
        ('{"run": ' + "9" * 5000 + "}", "limit"),
        ("layer,median_us\n", "Expecting value"),
        ("", "Expecting value"),
        ("\0", "Expecting value"),
    ],
)
def test_a_text_that_is_no_document_is_told(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse_document(text)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, a_run: MakeRun, a_layer_run: MakeLayerRun) -> Path:
    """Another trace database of two runs, closed."""
    path = tmp_path_factory.mktemp("other") / "other.db"
    with open_store(path) as store:
        fill(store, a_run(), a_layer_run())
        fill(store, a_run("later", started="2027-01-01"), a_layer_run())
    return path


def test_another_database_is_brought_in(store: Store, database: Path) -> None:
    assert store.import_database(database) == (ID, "later")
    with open_store(database) as other:
        for run_id in (ID, "later"):
            assert store.export_run(run_id) == other.export_run(run_id) | {"layers": store.export_run(run_id)["layers"]}
            assert store.layers(run_id) == other.layers(run_id)


def test_one_run_that_is_there_keeps_all_of_a_database_out(store: Store, database: Path, a_run: MakeRun) -> None:
    store.begin(a_run("later"))
    with pytest.raises(UsageError, match="run 'later' is in this database already"):
        store.import_database(database)
    assert [run.id for run in store.runs()] == ["later"]


def test_a_database_that_is_not_there_is_not_made(target: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a trace database, got no file"):
        target.import_database(tmp_path / "no.db")
    assert list(tmp_path.iterdir()) == []


HOSTILE = [
    "UPDATE run SET config = 'no JSON'",
    "UPDATE run SET config = '[1]'",
    "UPDATE run SET remarks = '7'",
    "UPDATE run SET status = 'gone'",
    "UPDATE environment SET content = '[]'",
    "UPDATE environment SET content = '" + "[" * 50_000 + "'",
    "UPDATE layer SET inputs = 'null'",
    "UPDATE layer SET place = 'first'",
    "UPDATE layer SET name = x'ff'",
    "UPDATE measurement SET batch = 'many'",
    "UPDATE measurement SET median_us = 'fast'",
    "UPDATE measurement SET created = x'00'",
    "UPDATE kernel SET grid_x = 'wide'",
    "UPDATE kernel SET duration_us = x'00'",
    "UPDATE kernel SET phase = 'sideways'",
    "UPDATE counter SET value = 'high'",
    "UPDATE coverage SET strays = '{\"a\": []}'",
    "UPDATE what_if SET before_clock = x'ff'",
    "UPDATE sparsity SET union_density = '{\"wide\": 1}'",
    "UPDATE simulation SET config = '{\"a\": [[]]}'",
    "UPDATE simulation SET cycles = 'none'",
    "DROP TABLE kernel",
    "DROP TABLE metric",
    "ALTER TABLE kernel DROP COLUMN registers",
    "DROP TABLE run; CREATE VIEW run AS SELECT 1",
    "UPDATE lamina_version SET version_num = '9999'",
    "UPDATE lamina_version SET version_num = 'x'",
    "DROP TABLE lamina_version",
]


@pytest.mark.parametrize("sql", HOSTILE)
def test_a_database_that_lamina_did_not_write_is_refused_whole(
    target: Store, database: Path, tmp_path: Path, sql: str
) -> None:
    path = tmp_path / "hostile.db"
    shutil.copy(database, path)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"DROP VIEW layer_table; DROP VIEW kernel_table; DROP VIEW counter_table; {sql}")
    before = sizes(target)
    with pytest.raises(LaminaError, match="hostile.db|expected a run as lamina exports it"):
        target.import_database(path)
    assert sizes(target) == before


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    holes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=64)), max_size=8),
    kept=st.just(1.0) | st.floats(0, 1),
)
def test_a_damaged_database_arrives_whole_or_not_at_all(
    target: Store,
    database: Path,
    tmp_path_factory: pytest.TempPathFactory,
    holes: list[tuple[float, bytes]],
    kept: float,
) -> None:
    content = bytearray(database.read_bytes())
    for share, noise in holes:
        place = int(share * len(content))
        content[place : place + len(noise)] = noise
    path = tmp_path_factory.mktemp("damaged") / "damaged.db"
    path.write_bytes(content[: int(kept * len(content))])
    before = sizes(target)
    try:
        arrived = target.import_database(path)
    except LaminaError:
        assert sizes(target) == before
        return
    for run_id in arrived:
        target.export_run(run_id)
        target.delete(run_id)


def test_what_another_program_wrote_into_a_store_is_told(store_path: Path, a_run: MakeRun) -> None:
    with open_store(store_path) as store:
        store.begin(a_run())
        with closing(sqlite3.connect(store_path)) as connection:
            connection.executescript("UPDATE run SET config = 'no JSON'")
        with pytest.raises(StoreError, match="holds a value that lamina did not write .*; restore a copy"):
            store.runs()

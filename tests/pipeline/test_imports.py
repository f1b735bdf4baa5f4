"""Files of every kind into a real store, and damaged ones that must leave it as it was."""

import gzip
import json
import lzma
import random
from pathlib import Path

import pytest

from lamina.errors import LaminaError, SpecError, UsageError
from lamina.pipeline import imports
from lamina.pipeline.imports import import_file
from lamina.store import Store, open_store

MEASURE = Path(__file__).parents[1] / "measure"
TRACE = MEASURE / "recorded" / "data" / "ranges_h200.json"
PACKED = MEASURE / "recorded" / "data" / "modules_h200.json.gz"
PAGE = MEASURE / "counters" / "data" / "alexnet_h200.csv"


@pytest.fixture
def store():
    with open_store(":memory:") as store:
        yield store


def contents(store: Store) -> list[tuple[object, ...]]:
    tables = ("run", "layer", "measurement", "kernel", "counter")
    return [store.query(f"SELECT COUNT(*) FROM {table}")[1][0] for table in tables]


@pytest.mark.parametrize(("path", "kernels", "counted"), [(TRACE, 18, 0), (PACKED, 18, 0), (PAGE, 15, 15)])
def test_a_trace_becomes_a_run(store, path, kernels, counted):
    run = store.run(import_file(path, store))
    assert (run.verb, run.target, run.status) == ("import", path.name, "done")
    assert len(store.kernels(run.id)) == kernels
    assert len({(one.key, one.invocation) for one in store.counters(run.id)}) == counted
    (coverage,) = store.coverages(run.id)
    assert 0.9 < coverage.share < 1
    assert {row.outcome for row in store.layers(run.id)} == {"ok"}


@pytest.mark.parametrize("path", [TRACE, PAGE])
def test_a_file_is_imported_once(store, path):
    import_file(path, store)
    before = contents(store)
    with pytest.raises(UsageError, match="already"):
        import_file(path, store)
    assert contents(store) == before


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_a_run_of_another_machine(store, tmp_path, pack):
    with open_store(":memory:") as other:
        run_id = import_file(PAGE, other)
        text = json.dumps(other.export_run(run_id)).encode()
        path = tmp_path / "run"
        path.write_bytes(pack(text))
        assert import_file(path, store) == run_id
        assert store.kernels(run_id) == other.kernels(run_id)
        assert store.counters(run_id) == other.counters(run_id)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "got neither"), (b"hello", "got neither"), (b"\xff\xfe\x00", "no text"), (b"NVR\0...", "--import FILE"),
        (b"{}", "got other JSON"), (b"[1, 2", "expected complete JSON"), (b"[" * 100_000, "recursion limit"),
        (b'{"traceEvents": 3}', "got other JSON"), (b'{"traceEvents": []}', "expected kernels, got none"),
        (b'[{"run": "a", "layer": "fc", "phase": "forward", "median_us": 1.0}]', "export the run with --format trace"),
        (b'{"format": 2, "run": 3}', "expected a run as lamina exports it"), (b"\x1f\x8b123", "gzip"),
        (gzip.compress(b"x" * 1000, mtime=0)[:-12], "gzip"),
        (lzma.compress(b"x" * 1000)[:-12], "xz"), (b"==PROF== x\n", "expected a table"),
        (b'"ID","Kernel Name"\n"",""\n', "got none"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": NaN, "args": {"correlation": 1}}]}', "ts"),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_explained(store, tmp_path, content, words):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        import_file(path, store)
    assert contents(store) == [(0,)] * 5


def test_a_file_that_is_not_there(store, tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        import_file(tmp_path / "gone", store)
    with pytest.raises(UsageError, match="cannot be read"):
        import_file(tmp_path, store)


@pytest.mark.parametrize("pack", [False, True])
def test_a_bomb_is_not_unpacked(store, tmp_path, monkeypatch, pack):
    monkeypatch.setattr(imports, "LARGEST", 1 << 20)
    path = tmp_path / "bomb"
    path.write_bytes(gzip.compress(bytes(1 << 24)) if pack else bytes(1 << 21))
    with pytest.raises(SpecError, match="larger than 1 MiB unpacked"):
        import_file(path, store)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_small_file_of_much_json_is_not_unpacked(store, tmp_path, monkeypatch, pack):
    monkeypatch.setattr(imports, "FREE", 1 << 16)
    path = tmp_path / "bomb"
    path.write_bytes(pack(b"[" + b"[]," * (1 << 20) + b"[]]"))
    with pytest.raises(SpecError, match="unpacks to over 250 times its size"):
        import_file(path, store)


def test_values_that_no_database_holds_are_refused(store, tmp_path):
    path = tmp_path / "t.json"
    path.write_text(TRACE.read_text().replace('"name":"conv"', '"name":"co\\u0000nv"'))
    with pytest.raises(UsageError, match="NUL"):
        import_file(path, store)
    assert contents(store) == [(0,)] * 5


@pytest.mark.parametrize("path", [TRACE, PAGE])
def test_damage_anywhere_leaves_the_database_whole(store, tmp_path, path):
    content, chance = path.read_bytes(), random.Random(7)
    damaged = tmp_path / "damaged"
    imported = 0
    for _ in range(25):
        at = chance.randrange(len(content))
        cut = chance.random() < 0.5
        damaged.write_bytes(content[:at] if cut else content[:at] + bytes([chance.randrange(256)]) + content[at + 1 :])
        before = contents(store)
        try:
            run_id = import_file(damaged, store)
        except LaminaError:
            assert contents(store) == before
        else:
            imported += 1
            store.delete(run_id)
    assert imported < 25

"""Flat tables say what the records say, with units and provenance."""

import csv
import io
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import MissingError, UsageError
from lamina.record import LayerRun, Run, Timing
from lamina.store import flatten, to_csv, to_json, to_parquet
from lamina.store.export import COLUMNS, Flat

MakeRun = Callable[..., Run]
MakeLayerRun = Callable[..., LayerRun]


@pytest.fixture
def rows(a_run: MakeRun, a_layer_run: MakeLayerRun) -> list[Flat]:
    """A measured and a failed row, with all that makes a file format stumble."""
    run = a_run(target='a "b", c')
    measured = a_layer_run(rel_error=math.inf, timing=Timing("cupti", "cold", 2000.0, 1.5, -math.inf, 7, 3))
    failed = a_layer_run("é\n2", inputs=((2, 3), (4,)), timing=None, outcome="failed", reason="a, b\r\n'c'")
    return flatten(run, [measured, failed])


def test_a_row_says_what_was_measured_where_and_on_what(rows: list[Flat]) -> None:
    measured, failed = rows
    assert list(measured) == list(failed) == list(COLUMNS)
    known = {
        "run": "20260102-abc", "date": "2026-01-02T03:04:05+00:00", "verb": "bench", "device": "cpu",
        "torch": "2.13.0", "commit": "c0ffee", "driver": None, "layer": "conv1", "inputs": "32x3x224x224",
        "output": "32x64x55x55", "clock": "cupti", "l2": "cold", "median_us": 2000.0, "n": 7, "kernels": 3,
        "flops": 4_497_715_200, "gflops": pytest.approx(2248.8576), "gbs": pytest.approx(22.063104),
    }  # fmt: skip
    assert {name: measured[name] for name in known} == known
    nothing = {name: failed[name] for name in ("clock", "median_us", "n", "gflops", "gbs")}
    assert set(nothing.values()) == {None}
    assert (failed["inputs"], failed["outcome"]) == ("2x3 4", "failed")


def test_every_value_of_a_record_has_a_column() -> None:
    fields = (LayerRun.__dataclass_fields__.keys() | Timing.__dataclass_fields__.keys()) - {"timing"}
    assert fields <= COLUMNS.keys()


TEXTS = ("reason", "executed_impl", "selection_reason", "note")
"""Columns whose empty cells are empty texts."""


def typed(name: str, cell: str) -> Any:
    return None if cell == "" and name not in TEXTS else COLUMNS[name](cell)


def test_csv_reads_back(rows: list[Flat], tmp_path: Path) -> None:
    to_csv(rows, tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        assert [{n: typed(n, c) for n, c in row.items()} for row in csv.DictReader(file)] == rows


def test_json_reads_back(rows: list[Flat], tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    to_json(rows, str(tmp_path / "a.json"))
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    measured, failed = json.loads(text, parse_constant=refuse)
    assert (measured["rel_error"], measured["q3_us"]) == ("Infinity", "-Infinity")
    assert {**measured, "rel_error": math.inf, "q3_us": -math.inf} == rows[0]
    assert failed == rows[1]


def test_parquet_reads_back(rows: list[Flat], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    to_parquet(rows, tmp_path / "a.parquet")
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.to_pylist() == rows
    kinds = {"string": str, "int64": int, "double": float}
    assert {field.name: kinds[str(field.type)] for field in table.schema} == COLUMNS


@pytest.mark.parametrize("write", [to_csv, to_json])
def test_a_stream_gets_what_a_file_gets(rows: list[Flat], tmp_path: Path, write: Callable[..., None]) -> None:
    stream = io.StringIO(newline="")
    write(rows, stream)
    write(rows, tmp_path / "file")
    assert (tmp_path / "file").read_bytes().decode() == stream.getvalue()


def test_no_rows_are_a_table_all_the_same(tmp_path: Path) -> None:
    for write, name in ((to_csv, "a.csv"), (to_json, "a.json"), (to_parquet, "a.parquet")):
        write([], tmp_path / name)
    assert (tmp_path / "a.csv").read_text().strip() == ",".join(COLUMNS)
    assert json.loads((tmp_path / "a.json").read_text()) == []


def test_without_pyarrow_it_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingError, match=r"pyarrow, which is not installed; pip install 'lamina\[parquet\]'"):
        to_parquet([], tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", [to_csv, to_json, to_parquet])
def test_a_file_that_cannot_be_written_is_told(tmp_path: Path, write: Callable[..., None]) -> None:
    with pytest.raises(UsageError, match="a.file: cannot be written .*No such file"):
        write([], tmp_path / "nowhere" / "a.file")

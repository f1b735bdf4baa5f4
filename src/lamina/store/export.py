"""Layer runs as flat tables for other programs: CSV, JSON, Parquet. A unit is part of a column's name."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from lamina.errors import MissingError, UsageError
from lamina.record import LayerRun, Run

Flat = Mapping[str, str | int | float | None]
File = str | os.PathLike[str]

COLUMNS: Mapping[str, type] = {
    "run": str, "date": str, "verb": str, "target": str,
    "device": str, "torch": str, "cuda": str, "driver": str, "lamina": str, "commit": str,
    "layer": str, "kind": str, "place": int, "inputs": str, "output": str, "parameters": int,
    "phase": str, "impl": str, "executed_impl": str, "selection_reason": str,
    "precision": str, "layout": str, "batch": int, "outcome": str, "reason": str,
    "clock": str, "l2": str, "median_us": float, "q1_us": float, "q3_us": float, "n": int, "kernels": int,
    "flops": int, "bytes": int, "gflops": float, "gbs": float,
    "rel_error": float, "peak_bytes": int, "live_bytes": int, "sm_mhz": int, "power_w": float, "note": str,
    "uncounted": int, "energy_j": float,
}  # fmt: skip
"""Columns of :func:`flatten` and their types; any may be empty. Shapes are text such as ``32x3x224x224``."""

_PROVENANCE = ("torch", "cuda", "driver", "lamina", "commit")


def flatten(run: Run, layers: Iterable[LayerRun]) -> list[Flat]:
    """One row per layer run under ``COLUMNS``, each with where it was born."""
    known = {name: run.environment.get(name) for name in _PROVENANCE}
    birth = {name: None if value is None else str(value) for name, value in known.items()}
    birth |= {"run": run.id, "date": run.started, "verb": run.verb, "target": run.target}
    return [{name: _cell(layer, birth, name) for name in COLUMNS} for layer in layers]


def _cell(layer: LayerRun, birth: Mapping[str, Any], name: str) -> Any:
    if name in birth:
        return birth[name]
    if name == "inputs":
        return " ".join(_shape(shape) for shape in layer.inputs)
    if name == "output":
        return _shape(layer.output)
    return getattr(layer if hasattr(layer, name) else layer.timing, name, None)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def to_csv(rows: Iterable[Flat], file: File | TextIO) -> None:
    """Write rows of :func:`flatten` as CSV (RFC 4180), UTF-8; an empty cell is an absent value."""
    with _text(file) as stream:
        table = csv.DictWriter(stream, COLUMNS)
        table.writeheader()
        table.writerows(rows)


def to_json(rows: Iterable[Flat], file: File | TextIO) -> None:
    """Write rows of :func:`flatten` as a JSON array of objects, UTF-8; infinity is the text ``Infinity``."""
    finite = [{name: _finite(cell) for name, cell in row.items()} for row in rows]
    with _text(file) as stream:
        json.dump(finite, stream, ensure_ascii=False, allow_nan=False, indent=1)
        stream.write("\n")


def to_parquet(rows: Iterable[Flat], file: File) -> None:
    """Write rows of :func:`flatten` as Parquet with the types of ``COLUMNS``.

    Raises:
        MissingError: pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingError(
            "Parquet: expected pyarrow, which is not installed; pip install 'lamina[parquet]'"
        ) from error
    kinds = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    with _writable(file):
        parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), os.fspath(file))


def _finite(cell: str | int | float | None) -> str | int | float | None:
    return ("-" if cell < 0 else "") + "Infinity" if isinstance(cell, float) and math.isinf(cell) else cell


@contextmanager
def _text(file: File | TextIO) -> Iterator[TextIO]:
    if isinstance(file, str | os.PathLike):
        with _writable(file), open(file, "w", encoding="utf-8", newline="") as stream:
            yield stream
    else:
        yield file


@contextmanager
def _writable(file: File) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"{os.fspath(file)}: cannot be written ({error.strerror or error})") from error

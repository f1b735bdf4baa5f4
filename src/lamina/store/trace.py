"""A whole run as one JSON document: to keep, and to bring to another machine's database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError
from sqlalchemy import Connection, RowMapping

from lamina.errors import UsageError
from lamina.record import Counter, Epoch, KernelRun, LayerRun, Roofs, Run
from lamina.store import read, rows, write
from lamina.store.kernels import counter_rows, insert_counters, insert_kernels, kernel_rows


# ``layer_id`` ties rows together within the document: a layer's name may stand for several shapes.
@dataclass(frozen=True, kw_only=True)
class _LayerRun(LayerRun):
    layer_id: int
    created: str


@dataclass(frozen=True, kw_only=True)
class _KernelRun(KernelRun):
    layer_id: int


@dataclass(frozen=True, kw_only=True)
class _Counter(Counter):
    layer_id: int


@dataclass(frozen=True)
class _Trace:
    __pydantic_config__ = ConfigDict(extra="forbid", ser_json_inf_nan="strings")

    format: Literal[1]
    run: Run
    layers: tuple[_LayerRun, ...] = ()
    epochs: tuple[Epoch, ...] = ()
    roofs: tuple[Roofs, ...] = ()
    kernels: tuple[_KernelRun, ...] = ()
    counters: tuple[_Counter, ...] = ()


@cache
def _document() -> TypeAdapter[_Trace]:
    return TypeAdapter(_Trace)


def export_trace(connection: Connection, run_id: str) -> dict[str, Any]:
    """The run of exactly this id with all that hangs on it. Infinity is the text ``Infinity``."""

    def tied(kind: Any, record: Any, row: RowMapping, *more: str) -> Any:
        return kind(**vars(record), **{name: row[name] for name in ("layer_id", *more)})

    layers = read.layer_rows(connection, run_id)
    trace = _Trace(
        format=1,
        run=read.select_run(connection, run_id),
        layers=tuple(tied(_LayerRun, rows.layer_run(row), row, "created") for row in layers),
        epochs=read.select_epochs(connection, run_id),
        roofs=read.select_roofs(connection, run_id),
        kernels=tuple(tied(_KernelRun, rows.kernel_run(row), row) for row in kernel_rows(connection, run_id)),
        counters=tuple(tied(_Counter, rows.counter_of(row), row) for row in counter_rows(connection, run_id)),
    )
    document: dict[str, Any] = json.loads(_document().dump_json(trace))
    return document


def import_trace(connection: Connection, document: Mapping[str, Any]) -> str:
    """Write what :func:`export_trace` gave; return the run's id.

    Raises:
        UsageError: the document is none of lamina's, or the run is there already.
    """
    try:
        trace = _document().validate_python(document)
    except ValidationError as error:
        raise _refusal([f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]) from error
    try:
        _insert(connection, trace)
    except ValueError as error:
        raise _refusal([str(error)]) from error
    return trace.run.id


def _insert(connection: Connection, trace: _Trace) -> None:
    run_id = trace.run.id
    write.insert_run(connection, trace.run)
    ids = {}
    for layer in trace.layers:
        ids[layer.layer_id] = write.insert_layer_run(connection, run_id, layer, layer.created)
    for epoch in trace.epochs:
        write.insert_epoch(connection, run_id, epoch)
    for roofs in trace.roofs:
        write.insert_roofs(connection, run_id, roofs)
    tied = {kernel.layer_id for kernel in trace.kernels} | {counter.layer_id for counter in trace.counters}
    if strays := tied - ids.keys():
        raise _refusal([f"layer_id: no layer has {stray}" for stray in sorted(strays)])
    insert_kernels(connection, ((ids[kernel.layer_id], kernel) for kernel in trace.kernels))
    insert_counters(connection, run_id, ((ids[counter.layer_id], counter) for counter in trace.counters))


def _refusal(faults: list[str]) -> UsageError:
    more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
    return UsageError(f"expected a run as lamina exports it (format 1), got: {'; '.join(faults[:3])}{more}")

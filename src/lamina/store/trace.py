"""A whole run as one JSON document: to keep, and to bring to another machine's database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import groupby
from textwrap import shorten
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError
from sqlalchemy import Connection

from lamina.errors import UsageError
from lamina.record import (
    Coverage,
    Epoch,
    KernelRun,
    Key,
    LayerRun,
    Roofs,
    Run,
    SimRun,
    Sparsity,
    Study,
    Trial,
    WhatIf,
)
from lamina.store import read, rows, studies, write
from lamina.store.counters import Reading, counters_of_launches, insert_counters
from lamina.store.kernels import insert_kernels, select_kernels, spelled

FORMAT: Literal[2] = 2
_UNKNOWN = ("", "", "", 0)  # configuration of a launch from before launches had one


# ``layer_id`` ties rows together within the document: a layer's name may stand for several shapes.
@dataclass(frozen=True, kw_only=True)
class _LayerRun(LayerRun):
    layer_id: int
    created: str


@dataclass(frozen=True)
class _Launch:
    """A kernel launch without its key, with its counters."""

    invocation: int
    name: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    registers: int | None
    shared_bytes: int | None
    duration_us: float
    counters: tuple[Reading, ...] = ()


@dataclass(frozen=True)
class _Launches:
    """The launches of one row."""

    layer_id: int
    key: Key
    launches: tuple[_Launch, ...]


@dataclass(frozen=True)
class _Trace:
    __pydantic_config__ = ConfigDict(extra="forbid", ser_json_inf_nan="strings")

    format: Literal[1, 2]  # 1 had no kernels that a command could write
    run: Run
    layers: tuple[_LayerRun, ...] = ()
    epochs: tuple[Epoch, ...] = ()
    roofs: tuple[Roofs, ...] = ()
    kernels: tuple[_Launches, ...] = ()
    coverages: tuple[Coverage, ...] = ()
    what_ifs: tuple[WhatIf, ...] = ()
    sparsities: tuple[Sparsity, ...] = ()
    simulations: tuple[SimRun, ...] = ()
    trials: tuple[Trial, ...] = ()
    study: Study | None = None


_LAUNCH = tuple(field.name for field in fields(KernelRun) if field.name != "key")


@cache
def _document() -> TypeAdapter[_Trace]:
    return TypeAdapter(_Trace)


def export_trace(connection: Connection, run_id: str) -> bytes:
    """JSON of the run of exactly this id with all that hangs on it. Infinity is the text ``Infinity``."""
    trace = _Trace(
        format=FORMAT,
        run=read.select_run(connection, run_id),
        layers=tuple(
            _LayerRun(**vars(rows.layer_run(row)), layer_id=row["layer_id"], created=row["created"])
            for row in read.layer_rows(connection, run_id)
        ),
        epochs=read.select_epochs(connection, run_id),
        roofs=read.select_roofs(connection, run_id),
        kernels=tuple(_launches(connection, run_id)),
        coverages=read.select_coverages(connection, run_id),
        what_ifs=read.select_what_ifs(connection, run_id),
        sparsities=read.select_sparsities(connection, run_id),
        simulations=read.select_simulations(connection, run_id),
        trials=studies.select_trials(connection, run_id),
        study=_without_trials(studies.select_study(connection, run_id)),
    )
    return _document().dump_json(trace, warnings="none")


def _launches(connection: Connection, run_id: str) -> Iterator[_Launches]:
    readings = counters_of_launches(connection, run_id)
    kernels = select_kernels(connection, run_id)
    for (layer_id, key), group in groupby(kernels, lambda one: (one[1], one[2].key)):
        launches = (_Launch(**_of(launch), counters=tuple(readings.get(number, ()))) for number, _, launch in group)
        yield _Launches(layer_id, key, tuple(launches))


def import_trace(connection: Connection, document: bytes | Mapping[str, Any]) -> str:
    """Write what :func:`export_trace` gave, or the object that it is the JSON of; return the run's id.

    Raises:
        UsageError: the document is none of lamina's, or the run is there already.
    """
    try:
        kind = _document()
        trace = kind.validate_json(document) if isinstance(document, bytes) else kind.validate_python(document)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise _refusal([f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in faults]) from error
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
    _require_rows(trace)
    insert_kernels(connection, _kernels(trace, ids))
    insert_counters(connection, run_id, _counters(trace, ids))
    for epoch in trace.epochs:
        write.insert_epoch(connection, run_id, epoch)
    for roofs in trace.roofs:
        write.insert_roofs(connection, run_id, roofs)
    for coverage in trace.coverages:
        write.insert_coverage(connection, run_id, coverage)
    for what_if in trace.what_ifs:
        write.insert_what_if(connection, run_id, what_if)
    write.insert_sparsity(connection, run_id, trace.sparsities)
    for simulation in trace.simulations:
        write.insert_simulation(connection, run_id, simulation)
    for trial in trace.trials:
        studies.insert_trial(connection, run_id, trial)
    if trace.study is not None:
        studies.insert_study(connection, run_id, trace.study)


def _without_trials(study: Study | None) -> Study | None:
    return None if study is None else replace(study, trials=())


def _require_rows(trace: _Trace) -> None:
    """Refuse launches of rows that are not in the document."""
    names = {(layer.layer_id, layer.layer) for layer in trace.layers}
    keys = {(layer.layer_id, layer.key) for layer in trace.layers}
    faults = [
        f"kernels: no layer has layer_id {group.layer_id} and key {spelled(group.key)}"
        for group in trace.kernels
        if (group.layer_id, group.key) not in keys
        and not (group.key[2:] == _UNKNOWN and (group.layer_id, group.key.layer) in names)
    ]
    if faults:
        raise _refusal(faults)


def _kernels(trace: _Trace, ids: Mapping[int, int]) -> Iterator[tuple[int, KernelRun]]:
    for group in trace.kernels:
        for launch in group.launches:
            yield ids[group.layer_id], KernelRun(group.key, **_of(launch))


def _of(launch: KernelRun | _Launch) -> dict[str, Any]:
    """What a launch is on its own."""
    return {name: getattr(launch, name) for name in _LAUNCH}


def _counters(trace: _Trace, ids: Mapping[int, int]) -> Iterator[tuple[int, Key, int, tuple[Reading, ...]]]:
    for group in trace.kernels:
        for launch in group.launches:
            if launch.counters:
                yield ids[group.layer_id], group.key, launch.invocation, launch.counters


def _refusal(faults: list[str]) -> UsageError:
    more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
    told = "; ".join(shorten(fault, 300, placeholder="...") for fault in faults[:3])
    return UsageError(f"expected a run as lamina exports it (format {FORMAT}), got: {told}{more}")

"""Records to rows of the tables, and back, exactly."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from hashlib import sha256
from math import isnan
from typing import Any

from sqlalchemy import RowMapping, Table

from lamina.record import (
    Coverage,
    Epoch,
    LayerRun,
    Roofs,
    Run,
    SimRun,
    Sparsity,
    Timing,
    WhatIf,
)
from lamina.store import schema

Row = dict[str, Any]
_LEVELS = 100  # of JSON
_PASSWORD = re.compile(r"(://[^\s/:@]*:)[^\s/]*@")


def now() -> str:
    """The date of a row: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def digest(content: Mapping[str, Any]) -> str:
    """A name for ``content``: equal for equal content."""
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def storable(row: Row) -> Row:
    """The row itself.

    Raises:
        ValueError: a value that not every database gives back as it was: NaN, a NUL character, half a
            surrogate pair, an integer beyond 64 bits, or JSON of something else than plain finite values,
            or of very many levels.
    """
    for column, value in row.items():
        if not plain(value):
            _require_storable(column, value)
    return row


def plain(value: object) -> bool:
    """Whether a value is storable at first sight, as almost all are."""
    kind = type(value)
    return (
        value is None
        or (kind is float and value == value)
        or (kind is int and -(2**63) <= value < 2**63)  # type: ignore[operator]
        or (kind is str and value.isascii() and "\0" not in value)  # type: ignore[attr-defined, operator]
    )


def _require_storable(column: str, value: object) -> None:
    try:
        match value:
            case float() if isnan(value):
                raise ValueError("NaN is no result; record a failure and its reason")
            case int() if not -(2**63) <= value < 2**63:
                raise ValueError("it does not fit 64 bits")
            case str() if "\0" in value:
                raise ValueError("it contains a NUL character")
            case str():
                value.encode()
            case Mapping() | list() | tuple():
                _require_shallow(value)
                json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{column} cannot be stored: {error}") from error


def _require_shallow(value: object) -> None:
    """Refuse what a JSON reader with a deep stack would give up on."""
    level = [value]
    for _ in range(_LEVELS):
        level = [
            below
            for one in level
            if isinstance(one, Mapping | list | tuple)
            for below in (one.values() if isinstance(one, Mapping) else one)
        ]
    if level:
        raise ValueError(f"it has more than {_LEVELS} levels")


def _shared(record: type, table: Table) -> tuple[str, ...]:
    """Fields of a record that are columns of a table under the same name."""
    return tuple(field.name for field in fields(record) if field.name in table.c)


_RUN = _shared(Run, schema.run)
_LAYER = _shared(LayerRun, schema.layer)
_MEASUREMENT = _shared(LayerRun, schema.measurement)
_TIMING = _shared(Timing, schema.measurement)
_EPOCH = _shared(Epoch, schema.epoch)
_ROOF = _shared(Roofs, schema.roof)
_COVERAGE = _shared(Coverage, schema.coverage)
_WHAT_IF = _shared(WhatIf, schema.what_if)
_SPARSITY = _shared(Sparsity, schema.sparsity)
_SIMULATION = _shared(SimRun, schema.simulation)
_TIMES = tuple(field.name for field in fields(Timing))


def _values(record: object, names: tuple[str, ...]) -> Row:
    return {name: getattr(record, name) for name in names}


def environment_row(run: Run) -> Row:
    """The environment of a run but for its date, so that runs on one machine share it."""
    content = {name: value for name, value in run.environment.items() if name != "date" or not _date(run)}
    names = {"device": "device", "driver": "driver", "cuda": "cuda", "torch": "torch", "lamina": "lamina"}
    known = {column: content.get(name) for column, name in {**names, "lamina_commit": "commit"}.items()}
    text = {column: value if isinstance(value, str) else None for column, value in known.items()}
    return storable({"content": content, **text}) | {"digest": digest(content)}


def run_row(run: Run, environment_id: int) -> Row:
    """A run; its environment is a row of its own."""
    environment = {"environment_id": environment_id, "environment_date": _date(run)}
    command = {"command": without_passwords(run.command)}
    return storable({**_values(run, _RUN), **command, **environment})


def without_passwords(text: str) -> str:
    """A text whose URLs have no password.

    >>> without_passwords("--store postgresql://me:secret@host/runs")
    '--store postgresql://me:***@host/runs'
    """
    return _PASSWORD.sub(r"\1***@", text)


def _date(run: Run) -> str | None:
    date = run.environment.get("date")
    return date if isinstance(date, str) and date else None


def run_of(row: RowMapping) -> Run:
    """The run of a row joined with its environment's ``content``."""
    values = {name: row[name] for name in _RUN}
    date = {} if row["environment_date"] is None else {"date": row["environment_date"]}
    return Run(**values | {"remarks": tuple(row["remarks"]), "environment": {**date, **row["content"]}})


def layer_row(run_id: str, layer: LayerRun) -> Row:
    """What the layer is, whichever way it was measured."""
    row = storable({"name": layer.layer, **_values(layer, _LAYER)})
    return {"run_id": run_id, "digest": digest(row), **row}


def measurement_row(layer_id: int, layer: LayerRun, created: str) -> Row:
    """How the layer was measured, and what came of it."""
    timing = _values(layer.timing, _TIMING) if layer.timing else dict.fromkeys(_TIMING)
    return storable({"layer_id": layer_id, "created": created, **_values(layer, _MEASUREMENT), **timing})


def layer_run(row: RowMapping) -> LayerRun:
    """The layer run of a measurement joined with its layer."""
    values = {name: row[name] for name in (*_LAYER, *_MEASUREMENT)}
    values |= {"inputs": tuple(tuple(shape) for shape in row["inputs"]), "output": tuple(row["output"])}
    timing = None if row["clock"] is None else Timing(**{name: row[name] for name in _TIMING})
    return LayerRun(layer=row["name"], timing=timing, **values)


def epoch_row(run_id: str, epoch: Epoch) -> Row:
    """An epoch of a run."""
    return storable({"run_id": run_id, **_values(epoch, _EPOCH)})


def epoch_of(row: RowMapping) -> Epoch:
    """The epoch of a row."""
    return Epoch(**{name: row[name] for name in _EPOCH})


def roof_row(run_id: str, roofs: Roofs) -> Row:
    """The roofs that a run was measured under."""
    return storable({"run_id": run_id, **_values(roofs, _ROOF)})


def roofs_of(row: RowMapping) -> Roofs:
    """The roofs of a row."""
    return Roofs(**{name: row[name] for name in _ROOF})


def coverage_row(run_id: str, coverage: Coverage) -> Row:
    """The coverage of one configuration of a run."""
    return storable({"run_id": run_id, **_values(coverage, _COVERAGE)})


def coverage_of(row: RowMapping) -> Coverage:
    """The coverage of a row."""
    return Coverage(**{name: row[name] for name in _COVERAGE})


def what_if_row(run_id: str, what_if: WhatIf) -> Row:
    """A change that was predicted and perhaps executed."""
    row = {"run_id": run_id, **_values(what_if, _WHAT_IF)}
    for side, timing in (("before", what_if.before), ("after", what_if.after)):
        row |= {f"{side}_{name}": getattr(timing, name, None) for name in _TIMES}
    return storable(row)


def what_if_of(row: RowMapping) -> WhatIf:
    """The what-if of a row."""

    def timing(side: str) -> Timing:
        return Timing(**{name: row[f"{side}_{name}"] for name in _TIMES})

    after = None if row["after_clock"] is None else timing("after")
    return WhatIf(before=timing("before"), after=after, **{name: row[name] for name in _WHAT_IF})


def sparsity_row(run_id: str, sparsity: Sparsity) -> Row:
    """An observation of a run."""
    union = {str(columns): share for columns, share in sparsity.union_density.items()}
    return storable({"run_id": run_id, **_values(sparsity, _SPARSITY), "union_density": union})


def sparsity_of(row: RowMapping) -> Sparsity:
    """The observation of a row."""
    union = {int(columns): share for columns, share in row["union_density"].items()}
    return Sparsity(**{name: row[name] for name in _SPARSITY} | {"union_density": union})


def simulation_row(run_id: str, simulation: SimRun) -> Row:
    """A simulated kernel of a run."""
    row = storable({"run_id": run_id, **_values(simulation, _SIMULATION)})
    asked = (simulation.layer, simulation.kernel, simulation.device, simulation.config)
    return row | {"digest": simulation_digest(*asked)}


def simulation_digest(layer: str, kernel: str, device: str, config: Mapping[str, Any]) -> str:
    """What is equal for equal simulations."""
    return digest({"layer": layer, "kernel": kernel, "device": device, "config": config})


def simulation_of(row: RowMapping) -> SimRun:
    """The simulated kernel of a row."""
    return SimRun(**{name: row[name] for name in _SIMULATION})

"""Studies in the trace database: each candidate as it is measured, and the result."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, RowMapping, delete, insert, select

from lamina.record.study import Settings, Study, Trial
from lamina.record.timing import Timing
from lamina.store import rows
from lamina.store.schema import study, trial

_TIMING = ("clock", "l2", "median_us", "q1_us", "q3_us", "n", "kernels")
_SETTINGS = ("precision", "layout", "mode", "method")
_OWN = ("layer", "kind", "impl", "dense_us", "predicted_us", "accuracy", "outcome", "reason")
_KEY = ("run_id", "layer", "impl", *_SETTINGS)


@cache
def _study() -> TypeAdapter[Study]:
    return TypeAdapter(Study)


def insert_trial(connection: Connection, run_id: str, new: Trial) -> None:
    """Write a candidate; one that is measured or judged again replaces its former self."""
    row = _row(run_id, new)
    connection.execute(delete(trial).where(*(trial.c[name] == row[name] for name in _KEY)))
    connection.execute(insert(trial), row)


def insert_study(connection: Connection, run_id: str, new: Study) -> None:
    """Write a result without its trials, which have rows of their own; it replaces a former one."""
    content = _study().dump_python(replace(new, trials=()), mode="json")
    connection.execute(delete(study).where(study.c.run_id == run_id))
    connection.execute(insert(study), rows.storable({"run_id": run_id, "content": content}))


def select_trials(connection: Connection, run_id: str) -> tuple[Trial, ...]:
    """Candidates as they were first added."""
    query = select(trial).where(trial.c.run_id == run_id).order_by(trial.c.id)
    return tuple(_trial(row) for row in connection.execute(query).mappings())


def select_study(connection: Connection, run_id: str) -> Study | None:
    """The result with its trials; ``None`` where the study has not ended."""
    content = connection.scalar(select(study.c.content).where(study.c.run_id == run_id))
    if content is None:
        return None
    return replace(_study().validate_python(content), trials=select_trials(connection, run_id))


def _row(run_id: str, new: Trial) -> rows.Row:
    timing: dict[str, Any] = asdict(new.timing) if new.timing else dict.fromkeys(_TIMING)
    values = {name: getattr(new, name) for name in _OWN} | asdict(new.settings)
    return rows.storable({"run_id": run_id, **values, **{f"time_{name}": timing[name] for name in _TIMING}})


def _trial(row: RowMapping) -> Trial:
    timing = {name: row[f"time_{name}"] for name in _TIMING}
    return Trial(
        settings=Settings(**{name: row[name] for name in _SETTINGS}),
        timing=Timing(**timing) if timing["clock"] is not None else None,
        **{name: row[name] for name in _OWN},
    )

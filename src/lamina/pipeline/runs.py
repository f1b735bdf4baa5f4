"""Where a verb's rows go: a new run, or an unfinished one of the same work."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from lamina.build import Target
from lamina.errors import UnsupportedError
from lamina.record import Environment, Run
from lamina.spec import Workload
from lamina.spec.training import Training
from lamina.store import Store


def begin(
    verb: str,
    target: Target,
    asked: Workload | Training,
    environment: Environment,
    store: Store,
    command: str,
    resume: bool,
    more: Mapping[str, Any] | None = None,
) -> tuple[Run, frozenset[tuple[str | int, ...]]]:
    """The run to write to, new or resumed, and the keys of the rows it already has; ``more`` joins its config."""
    config = json.loads(asked.model_dump_json()) | dict(more or {})
    described = [target.name, _layers(target), config]
    software = [environment.device, environment.lamina, environment.torch, environment.driver]
    fingerprint = hashlib.sha256(json.dumps([verb, described, software], default=str).encode()).hexdigest()[:16]
    earlier = store.unfinished(fingerprint) if resume else None
    if earlier:
        store.resume(earlier.id)
        return earlier, store.measured(earlier.id)
    this = Run(
        id=uuid.uuid4().hex[:12],
        verb=verb,
        target=target.name,
        command=command,
        started=environment.date,
        fingerprint=fingerprint,
        config=config,
        environment=asdict(environment),
        remarks=target.remarks,
    )
    store.begin(this)
    return this, frozenset()


def _layers(target: Target) -> list[str]:
    """The network's layers as text; of one that cannot be traced, such as for its control flow, the reason."""
    try:
        return [layer.layer.model_dump_json() for layer in target.resolve()]
    except UnsupportedError as error:
        _require_runs(target, error)
        return [str(error)]


def _require_runs(target: Target, refusal: UnsupportedError) -> None:
    """Refuse a network that does not even run as it is."""
    network = target.make(None)
    inputs = target.example_for(network, target.batch)
    try:
        network(*inputs)
    except Exception as error:
        raise refusal from error


@contextmanager
def closing(store: Store, run_id: str) -> Iterator[list[str]]:
    """Record how a run ended, whatever ends it, with the warnings that were put into the list."""
    remarks: list[str] = []
    try:
        yield remarks
    except BaseException as error:
        store.finish(run_id, "interrupted" if isinstance(error, KeyboardInterrupt) else "failed", _now(), remarks)
        raise
    store.finish(run_id, "done", _now(), remarks)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

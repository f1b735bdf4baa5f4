"""``simulate``: layers of a network, one job each; a result that the store has is not simulated again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lamina import measure
from lamina.errors import Fault, SpecError, UsageError, nearest
from lamina.pipeline.runs import closing
from lamina.pipeline.targets import find
from lamina.record import Environment, Run, SimRun
from lamina.simulate.engines import Engine
from lamina.simulate.hierarchy import Device, preset, read_device
from lamina.simulate.jobs import DEVICE, Job, Options, Result, Settings, Value, key_of, unit
from lamina.simulate.workloads import ConvolutionGemm, convolutions
from lamina.spec.faults import plain
from lamina.store import Store

DEFAULTS: Settings = {"unit": "dense", "device.preset": "mi6"}
OWN = ("unit", "network", "layer", "batch", "device.preset")
"""Settings of every job; the others are the device's, or the unit's."""
VERBS = ("simulate", "sweep")
SOFTWARE = ("lamina", "commit", "numpy")
"""What must be equal for a stored result to stand for a new one."""


@dataclass(frozen=True)
class Simulated:
    """A run with the results of its jobs, in their order; ``found`` of them the store had."""

    run: Run
    results: tuple[Result, ...]
    found: int

    @property
    def failed(self) -> tuple[Result, ...]:
        return tuple(each for each in self.results if each.run is None)


@dataclass(frozen=True)
class Finished:
    """Tells a watcher how many of the jobs are done, and with which result the last one ended."""

    done: int
    total: int
    result: Result | None = None


Watch = Callable[[Finished], None]


class Planner:
    """From settings by name to jobs; each network is read once."""

    def __init__(self) -> None:
        self._networks: dict[tuple[str, int | None], tuple[int, tuple[ConvolutionGemm, ...]]] = {}

    def jobs(self, settings: Settings, source: str = "--set") -> tuple[Job, ...]:
        """One job for each layer that the settings ask for: all convolutions, or those that ``layer`` names.

        ``network`` and ``batch``, ``layer`` (a name, or a pattern such as ``features.*``), ``unit``, and
        ``device.preset`` (a shipped device or a device file) say what to simulate; ``device.l2.bytes`` and the
        like change the device; everything else is the unit's.

        Raises:
            UsageError, SpecError: a setting is unknown, missing or impossible; all faults of one kind at once.
        """
        asked = {**DEFAULTS, **settings}
        for name in ("unit", "network", "layer", "device.preset"):
            if name in asked and not isinstance(asked[name], str):
                raise SpecError(source, f"{name} = {asked[name]!r}: expected a text")
        if "network" not in asked:
            raise SpecError(source, "network is missing: name a network of the zoo, a file or a recipe")
        name = str(asked["unit"])
        options, device = _options(name, asked, source), _device(asked, source)
        network = str(asked["network"])
        batch, gemms = self._gemms(network, _batch(asked, source))
        return tuple(
            Job(name, network, batch, gemm, device, options) for gemm in _chosen(gemms, asked.get("layer"), source)
        )

    def _gemms(self, network: str, batch: int | None) -> tuple[int, tuple[ConvolutionGemm, ...]]:
        if (network, batch) not in self._networks:
            target, _ = find(network)
            found = convolutions(target.resolve(batch))
            if not found:
                raise UsageError(f"{network}: expected a network with convolutions, got none")
            self._networks[network, batch] = batch or target.batch, found
        return self._networks[network, batch]


def simulate(
    jobs: Sequence[Job],
    store: Store,
    engine: Engine,
    *,
    target: str,
    config: Mapping[str, Any],
    verb: str = "simulate",
    command: str = "",
    resume: bool = False,
    fresh: bool = False,
    watch: Watch | None = None,
) -> Simulated:
    """Simulate jobs; each result is stored as it comes.

    A result of an equal job that any run of the same lamina and commit has stored is taken from there, so what was
    killed or interrupted goes on where it stood. A job without a result becomes a remark of the run, and the others
    go on.

    Args:
        jobs: what to simulate; equal ones are simulated once.
        store: where results are looked up and go.
        engine: where jobs run.
        target: the run's title.
        config: what was asked, JSON-able: runs with equal ones are the same work.
        verb: ``simulate`` or ``sweep``.
        command: the command line, for provenance.
        resume: complete the last unfinished run of the same work instead of beginning a new one.
        fresh: simulate again what the store has.
        watch: is told how far it is.
    """
    this = _begin(verb, target, config, store, command, resume)
    results: dict[str, Result] = {}
    own = {key_of(run.config) for run in store.simulations(this.id)}
    wanted = {job.key: job for job in jobs}
    with closing(store, this.id) as remarks:
        for key, run in _stored(store, this, None if not fresh else this.id):
            if key in wanted and key not in results:
                results[key] = Result(wanted[key], run)
                if key not in own:
                    store.add_simulation(this.id, run)
        found = len(results)
        _tell(watch, Finished(found, len(wanted)))
        todo = [job for key, job in wanted.items() if key not in results]
        with contextlib.closing(engine.submit(todo)) as submitted:
            for result in submitted:
                if result.run is not None:
                    store.add_simulation(this.id, result.run)
                else:
                    remarks.append(f"{result.job.layer}: {result.reason}")
                results[result.job.key] = result
                _tell(watch, Finished(len(results), len(wanted), result))
    return Simulated(store.run(this.id), tuple(replace(results[job.key], job=job) for job in jobs), found)


def _tell(watch: Watch | None, event: Finished) -> None:
    if watch is not None:
        watch(event)


def _begin(verb: str, target: str, config: Mapping[str, Any], store: Store, command: str, resume: bool) -> Run:
    environment: Environment = measure.environment("cpu")
    asked = json.dumps([verb, target, config, environment.lamina], sort_keys=True)
    fingerprint = hashlib.sha256(asked.encode()).hexdigest()[:16]
    if resume and (earlier := store.unfinished(fingerprint)):
        store.resume(earlier.id)
        return earlier
    this = Run(
        id=uuid.uuid4().hex[:12],
        verb=verb,
        target=target,
        command=command,
        started=environment.date,
        fingerprint=fingerprint,
        config=dict(config),
        environment=asdict(environment),
    )
    store.begin(this)
    return this


def _stored(store: Store, this: Run, only: str | None) -> Iterator[tuple[str, SimRun]]:
    """What runs of the same software hold, this one's first; ``only`` one run's where that is asked."""
    for verb in VERBS:
        for run in sorted(store.runs(limit=None, verb=verb), key=lambda run: run.id != this.id):
            if only in (None, run.id) and all(
                run.environment.get(key) == this.environment.get(key) for key in SOFTWARE
            ):
                for simulation in store.simulations(run.id):
                    yield key_of(simulation.config), simulation


def _options(name: str, asked: Settings, source: str) -> Options:
    """The settings of the unit itself."""
    model = unit(name).options
    own = {key: value for key, value in asked.items() if key not in OWN and not key.startswith(DEVICE)}
    known = [*OWN, *model.model_fields, "device.l2.bytes"]
    faults = [Fault(f"key {key!r} is unknown: {nearest(key, known)}") for key in own if key not in model.model_fields]
    if faults:
        raise SpecError(source, faults)
    try:
        return model.model_validate(own)
    except ValidationError as error:
        told = [Fault(sentence if key in sentence else f"{key}: {sentence}") for key, sentence in plain(error, known)]
        raise SpecError(source, told) from None


def _device(asked: Settings, source: str) -> Device:
    name = str(asked["device.preset"])
    device = read_device(Path(name)) if name.endswith(".toml") else preset(name)
    changes: dict[str, Value] = {
        key.removeprefix(DEVICE): value
        for key, value in asked.items()
        if key.startswith(DEVICE) and key != "device.preset"
    }
    try:
        return device.changed(changes) if changes else device
    except SpecError as error:
        raise SpecError(source, [replace(each, message=f"device: {each.message}") for each in error.faults]) from None


def _batch(asked: Settings, source: str) -> int | None:
    batch = asked.get("batch")
    if batch is not None and (not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= 2**20):
        raise SpecError(source, f"batch = {batch!r}: expected a whole number from 1 to {2**20}")
    return batch


def _chosen(gemms: Sequence[ConvolutionGemm], pattern: Value | None, source: str) -> list[ConvolutionGemm]:
    if pattern is None:
        return list(gemms)
    names = [each.layer for each in gemms]
    chosen = [each for each in gemms if each.layer == pattern or fnmatchcase(each.layer, str(pattern))]
    if not chosen:
        raise SpecError(source, f"layer = {pattern!r} is none of the convolutions: {nearest(str(pattern), names)}")
    return chosen

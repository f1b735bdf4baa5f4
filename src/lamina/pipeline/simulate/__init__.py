"""``simulate``: one job per layer of a network; results that the store has are not simulated again."""

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
from lamina.simulate.workloads import ConvolutionGemm, backward, convolutions
from lamina.spec import Phase
from lamina.spec.shape import parse
from lamina.spec.validated import plain
from lamina.store import Store

DEFAULTS: Settings = {"unit": "dense", "device.preset": "mi6"}
OWN = ("unit", "network", "input_size", "layer", "batch", "phase", "device.preset")
"""Settings of every job; the others are those of the device or of the simulated unit."""
VERBS = ("simulate", "sweep")
SOFTWARE = ("lamina", "commit", "numpy")
"""Versions that must be equal for a stored result to be reused."""


@dataclass(frozen=True)
class Simulated:
    """A run with the results of its jobs, in order; ``found`` of them came from the store."""

    run: Run
    results: tuple[Result, ...]
    found: int

    @property
    def failed(self) -> tuple[Result, ...]:
        return tuple(each for each in self.results if each.run is None)


@dataclass(frozen=True)
class Finished:
    """Progress: the number of finished jobs, and the result of the last one."""

    done: int
    total: int
    result: Result | None = None


Watch = Callable[[Finished], None]


class Planner:
    """Creates jobs from settings; each network is read once.

    ``layer_option`` is the option that the setting ``layer`` came from, for errors, if it is not the source of all.
    """

    def __init__(self, layer_option: str = "") -> None:
        self._layer_option = layer_option
        self._networks: dict[tuple[Any, ...], tuple[int, tuple[ConvolutionGemm, ...]]] = {}

    def jobs(self, settings: Settings, source: str = "--set") -> tuple[Job, ...]:
        """One job per selected layer: all convolutions, or those that match ``layer``.

        ``network`` and ``batch``, ``input_size`` (such as ``3x224x224``, where the network's package does not define
        it), ``layer`` (a name, or a pattern such as ``features.*``), ``phase`` (by default forward), ``unit``, and
        ``device.preset`` (a shipped device or a device file) select what to simulate; keys such as ``device.l2.bytes``
        change the device; all others are options of the unit.

        Raises:
            UsageError, SpecError: a setting is unknown, missing or invalid; all faults of one kind at once.
        """
        requested = {**DEFAULTS, **settings}
        for name in ("unit", "network", "layer", "phase", "device.preset"):
            if name in requested and not isinstance(requested[name], str):
                raise SpecError(source, f"{name} = {requested[name]!r}: expected a string")
        if "network" not in requested:
            raise SpecError(source, "network is missing: name a network of the zoo, a file or a recipe")
        name = str(requested["unit"])
        options, device = _options(name, requested, source), _device(requested, source)
        network, phase = str(requested["network"]), _phase(requested, source)
        batch, gemms = self._gemms(network, input_size(requested, source), _batch(requested, source))
        return tuple(
            Job(name, network, batch, backward(gemm, phase), device, options)
            for gemm in _chosen(gemms, requested.get("layer"), self._layer_option, source)
        )

    def _gemms(
        self, network: str, size: tuple[int, ...] | None, batch: int | None
    ) -> tuple[int, tuple[ConvolutionGemm, ...]]:
        if (network, size, batch) not in self._networks:
            target, _ = find(network, input_size=size)
            found = convolutions(target.resolve(batch))
            if not found:
                raise UsageError(f"{network}: expected a network with convolutions, got none")
            self._networks[network, size, batch] = batch or target.batch, found
        return self._networks[network, size, batch]


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
    """Simulate jobs and store each result as soon as it is available.

    Results of equal jobs in any stored run of the same lamina version and commit are reused, so an interrupted run
    continues where it stopped. A job without a result becomes a warning of the run, and the others continue.

    Args:
        jobs: what to simulate; equal ones are simulated once.
        store: the store of results, also searched for reusable ones.
        engine: executes the jobs.
        target: the run's title.
        config: the requested settings, JSON-serializable; runs with equal ones are the same work.
        verb: ``simulate`` or ``sweep``.
        command: the command line, for provenance.
        resume: complete the last unfinished run of the same work instead of starting a new one.
        fresh: do not reuse stored results.
        watch: called with progress events.
    """
    this = _begin(verb, target, config, store, command, resume)
    results: dict[str, Result] = {}
    own = {key_of(run.config) for run in store.simulations(this.id)}
    wanted = {job.key: job for job in jobs}
    with closing(store, this.id) as warnings:
        for key, run in _stored(store, this, None if not fresh else this.id):
            if key in wanted and key not in results:
                results[key] = Result(wanted[key], run)
                if key not in own:
                    store.add_simulation(this.id, run)
        found = len(results)
        _notify(watch, Finished(found, len(wanted)))
        todo = [job for key, job in wanted.items() if key not in results]
        with contextlib.closing(engine.submit(todo)) as submitted:
            for result in submitted:
                if result.run is not None:
                    store.add_simulation(this.id, result.run)
                else:
                    warnings.append(f"{result.job.layer}: {result.reason}")
                results[result.job.key] = result
                _notify(watch, Finished(len(results), len(wanted), result))
    return Simulated(store.run(this.id), tuple(replace(results[job.key], job=job) for job in jobs), found)


def _notify(watch: Watch | None, event: Finished) -> None:
    if watch is not None:
        watch(event)


def _begin(verb: str, target: str, config: Mapping[str, Any], store: Store, command: str, resume: bool) -> Run:
    environment: Environment = measure.environment("cpu")
    requested = json.dumps([verb, target, config, environment.lamina], sort_keys=True)
    fingerprint = hashlib.sha256(requested.encode()).hexdigest()[:16]
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
    """Stored simulations of the same software versions, this run's first; only those of run ``only`` if given."""
    for verb in VERBS:
        for run in sorted(store.runs(limit=None, verb=verb), key=lambda run: run.id != this.id):
            if only in (None, run.id) and all(
                run.environment.get(key) == this.environment.get(key) for key in SOFTWARE
            ):
                for simulation in store.simulations(run.id):
                    yield key_of(simulation.config), simulation


def _options(name: str, requested: Settings, source: str) -> Options:
    """The settings of the unit itself."""
    model = unit(name).options
    own = {key: value for key, value in requested.items() if key not in OWN and not key.startswith(DEVICE)}
    known = [*OWN, *model.model_fields, "device.l2.bytes"]
    faults = [Fault(f"key {key!r} is unknown: {nearest(key, known)}") for key in own if key not in model.model_fields]
    if faults:
        raise SpecError(source, faults)
    try:
        return model.model_validate(own)
    except ValidationError as error:
        faults = [Fault(sentence if key in sentence else f"{key}: {sentence}") for key, sentence in plain(error, known)]
        raise SpecError(source, faults) from None


def _device(requested: Settings, source: str) -> Device:
    name = str(requested["device.preset"])
    device = read_device(Path(name)) if name.endswith(".toml") else preset(name)
    changes: dict[str, Value] = {
        key.removeprefix(DEVICE): value
        for key, value in requested.items()
        if key.startswith(DEVICE) and key != "device.preset"
    }
    try:
        return device.changed(changes) if changes else device
    except SpecError as error:
        raise SpecError(source, [replace(each, message=f"device: {each.message}") for each in error.faults]) from None


def input_size(requested: Settings, source: str) -> tuple[int, ...] | None:
    """The shape of a sample that settings ask for, such as ``3x224x224``.

    Raises:
        SpecError: it is no shape.
    """
    text = requested.get("input_size")
    if text is None:
        return None
    if (sizes := parse(str(text))) is None:
        raise SpecError(source, f"input_size = {text!r}: expected sizes such as 3x224x224")
    return sizes


def _batch(requested: Settings, source: str) -> int | None:
    batch = requested.get("batch")
    if batch is not None and (not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= 2**20):
        raise SpecError(source, f"batch = {batch!r}: expected an integer from 1 to {2**20}")
    return batch


def _phase(requested: Settings, source: str) -> Phase:
    name = str(requested.get("phase", Phase.FORWARD.value))
    known = [each.value for each in Phase]
    if name not in known:
        raise SpecError(source, f"phase = {name!r}: expected one of {', '.join(known)}")
    return Phase(name)


def _chosen(gemms: Sequence[ConvolutionGemm], pattern: Value | None, option: str, source: str) -> list[ConvolutionGemm]:
    if pattern is None:
        return list(gemms)
    names = [each.layer for each in gemms]
    chosen = [each for each in gemms if each.layer == pattern or fnmatchcase(each.layer, str(pattern))]
    if not chosen:
        what = repr(pattern) if option else f"layer = {pattern!r}"
        fault = f"{what} is none of the convolutions: {nearest(str(pattern), names)}"
        raise SpecError(option or source, fault)
    return chosen

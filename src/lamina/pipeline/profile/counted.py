"""Hardware counters of a profiled iteration: read in a second process, kept where it ran the same kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from lamina.build import Target
from lamina.errors import MissingError
from lamina.measure import counters
from lamina.pipeline.watch import Watch
from lamina.record import Key
from lamina.spec import Phase, Point, Workload
from lamina.store import Store

Replay = Callable[[Point], Sequence[str]]
"""From a point of the grid to the command line of a process that runs its iteration once."""

TIMEOUT_S = 3600.0


def range_name(place: int, phase: Phase | str) -> str:
    """How a phase of a layer is called where only a text can say it."""
    return f"lamina/{place}/{Phase(phase).value}"


def metrics(asked: Sequence[str]) -> tuple[str, ...]:
    """The metrics behind the names of sets and metrics; none for ``none``.

    Raises:
        UsageError: no set and no metric is called so.
    """
    return () if list(asked) == ["none"] else counters.select(asked)


def passes(asked: Sequence[str]) -> int | None:
    """How often Nsight Compute runs each kernel for a set of metrics here; ``None`` where nobody has counted."""
    if not torch.cuda.is_available():
        return None
    chip = {(9, 0): "gh100"}.get(torch.cuda.get_device_capability())
    return counters.passes(asked, chip) if chip else None


def count(
    target: Target,
    workload: Workload,
    store: Store,
    run_id: str,
    wanted: Sequence[str],
    replay: Replay,
    watch: Watch,
    batches: Sequence[int] = (),
    limit_s: Callable[[], float] = lambda: TIMEOUT_S,
) -> list[str]:
    """Read and store the counters of every profiled point that has none yet; answer what fell short.

    ``batches`` are the batch sizes at which to read them, by default all; ``limit_s`` is asked how many seconds
    the next point may take.

    Where this machine lets nobody read counters, the profile keeps its times, and the answer says why.
    """
    have = {one.key[2:] for one in store.counters(run_id, metric=wanted[0])}
    short: list[str] = []
    for point in workload.points():
        setting = (str(point.method), point.precision, point.layout, point.batch or target.batch)
        kernels = [one for one in store.kernels(run_id) if one.key[2:] == setting]
        if not kernels or setting in have or (batches and setting[-1] not in batches):
            continue
        try:
            if reason := counters.refusal():
                raise MissingError(reason)
            watch(f"{point}: reading {len(wanted)} counters of {len(kernels)} launches with Nsight Compute")
            torch.cuda.empty_cache()  # the other process needs the memory
            session = counters.profile(replay(point), wanted, timeout_s=limit_s(), on_line=watch)
        except MissingError as error:
            short.append(f"no hardware counters, times only: {error}")
            watch(short[-1])
            return short
        keys = {
            range_name(row.place, row.phase): row.key
            for row in store.layers(run_id)
            if row.timing and row.timing.kernels and row.key[2:] == setting and row.phase != "step"
        }
        found, refused = counters.join(kernels, session.profiled, keys)
        store.add_counters(run_id, found)
        for one in refused:
            short.append(f"counters refused for {_named(one.key) or one.range}: {one.reason}")
            watch(short[-1])
        watch(
            f"{point}: {len(keys) - len(refused)} of {len(keys)} phases have counters, "
            f"{session.passes} passes for each kernel"
        )
    return short


def _named(key: Key | None) -> str:
    return f"{key.layer} {key.phase} (batch {key.batch}, {key.precision})" if key else ""

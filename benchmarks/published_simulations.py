"""Claim: the statements of a paper's simulated figures and tables hold in our simulations, or are listed as failing.

``figures``: every simulated entry ``spartan-*`` (Dong 2020, sections 6.5 and 6.6), at its settings, with each printed
value and statement beside ours. ``recorded``: those with masks recorded over a training, beside generated patterns of
the same density. ``fission``: every simulated entry ``deftnn-*`` (Hill 2017), likewise. ``designs``: the whole grid of
``examples/engine.toml``. Every run is complete; small networks come first, and of each the longest layers. What is not
finished after ``SECONDS`` is listed as missing. Stored results are not simulated again, so an interrupted benchmark
continues. It uses all available processors.

Run: python -m benchmarks.published_simulations figures
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import results
from lamina.errors import LaminaError
from lamina.pipeline.reproduce.points import Pair
from lamina.pipeline.reproduce.simulated import Planned, Simulating, plan, reproduce_simulated
from lamina.pipeline.reproduce.statements import STATEMENT
from lamina.pipeline.simulate import Finished, Planner, simulate
from lamina.pipeline.simulate import sweep as designs
from lamina.record.beside import Beside
from lamina.simulate.engines import Processes, Results
from lamina.simulate.grid import read_grid
from lamina.simulate.jobs import Job, Result, execute
from lamina.spec.published import Published, entries
from lamina.store import Store, open_store

SECONDS = 1000
GRID = Path(__file__).parents[1] / "examples" / "engine.toml"
CACHE = Path(tempfile.gettempdir()) / "lamina_published_simulations.db"
EXTRACTS = {"figures": "simulated_engine", "recorded": "simulated_recorded", "fission": "simulated_fission"}
"""The shipped rows of each claim's entries."""
VERDICTS = {True: "reproduced", False: "not reproduced", None: "cannot be determined"}
ROW = {
    "phase": "forward", "precision": "fp32", "layout": "nchw", "timing": "simulated", "l2": "warm", "n": 1,
    "rel_error": None, "unchecked": "simulated",
}  # fmt: skip


@dataclass(frozen=True)
class Done:
    """Replaces the engine after the time limit: yields a reason for each job."""

    results: Mapping[str, Result]

    def submit(self, jobs: Sequence[Job]) -> Results:
        for job in jobs:
            yield self.results.get(job.key) or Result(job, None, f"not done after {SECONDS} s")


def main() -> None:
    args = results.arguments("published_simulations", what=(*EXTRACTS, "designs"))
    workers = len(os.sched_getaffinity(0))
    execute(Planner().jobs({"network": "lenet5", "batch": 1, "unit": "compaction-engine"})[0])  # compiles
    with open_store(CACHE) as store:
        rows, summary = grid(store, workers) if args.what == "designs" else figures(store, workers, EXTRACTS[args.what])
    claim = f"published_{args.what}"
    summary = {"simulated at a time": f"{workers} layers", **summary}
    print(results.write(claim, "cpu", rows, summary, args, f"published_simulations {args.what}"))
    for name, value in summary.items():
        print(f"{name}: {value}")


def figures(store: Store, workers: int, extract: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """A row for each point, and every printed value and statement with our result."""
    own = [entry for entry in entries() if entry.simulates and entry.recorded == extract]
    planned = {entry.id: _planned(entry) for entry in own if not entry.counts}
    jobs = [job for points in planned.values() for each in points for job in (each.baseline, each.ours)]
    engine = Done(_fill(jobs, store, workers))
    found = {each.job.key: each for each in simulate(jobs, store, engine, target="published", config={}).results}
    rows: list[dict[str, Any]] = []
    summary: dict[str, str] = {}
    for entry in own:
        assert entry.simulates
        beside, _ = reproduce_simulated(entry, entry.simulates, store, Simulating(engine))
        summary |= dict(_told(entry, beside))
        for each in planned.get(entry.id, ()):
            pair = Pair.of(each.point, found[each.ours.key], found[each.baseline.key])
            if pair.reason:
                summary[f"{entry.id}: {each.point.title}"] = f"no result: {pair.reason}"
            else:
                rows.append(_row(entry, each, pair) | _zeros(found[each.ours.key]))
    return rows, summary


def grid(store: Store, workers: int) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """A row for each design, and the Pareto front."""
    planned = designs.plan(read_grid(GRID), GRID.name)
    done = designs.sweep(planned, store, Done(_fill(planned.all, store, workers)))
    rows = [
        ROW
        | {"workload": one.network, "layer": str(planned.grid.base["layer"]), "batch": one.batch, "impl": "design"}
        | dict.fromkeys(("median_us", "q1_us", "q3_us"), one.microseconds)
        | {"settings": dict(one.settings), "speedup": one.speedup, "sram_bytes": one.sram_bytes, "front": one.front}
        for one in done.designs
        if one.microseconds is not None
    ]
    summary = {"designs": f"{len(rows)} of {len(done.designs)} have a result"}
    for one in done.front:
        settings = ", ".join(f"{key} = {value}" for key, value in one.settings.items())
        summary[f"front: {settings}"] = f"{one.speedup:.3f}x with {one.sram_bytes / 1024:g} KB of SRAM added"
    return rows, summary


def _planned(entry: Published) -> tuple[Planned, ...]:
    assert entry.simulates
    return plan(entry, entry.simulates, {})


def _fill(jobs: Sequence[Job], store: Store, workers: int) -> dict[str, Result]:
    """Simulate into the store until the time limit; only results that it does not have."""
    done = {}

    def watch(event: Finished) -> None:
        if event.result is None or event.done % 20 == 0:
            print(f"{event.done} of {event.total}", flush=True)
        if event.result is not None:
            done[event.result.job.key] = event.result

    network: dict[str, float] = {}
    for job in jobs:
        network[job.network] = network.get(job.network, 0.0) + _work(job)
    ordered = sorted(jobs, key=lambda job: (network[job.network], -_work(job)))
    try:
        with _within(SECONDS):
            simulate(ordered, store, Processes(workers), target="published", config={}, watch=watch)
    except (TimeoutError, LaminaError) as error:  # a killed process breaks the whole pool
        print(error, flush=True)
    return done


def _work(job: Job) -> float:
    return job.gemm.m * job.gemm.n * job.gemm.k * float(job.config.get("density", 0.4))


@contextmanager
def _within(seconds: int) -> Iterator[None]:
    def end(*_: object) -> None:
        raise TimeoutError(f"not finished after {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _told(entry: Published, beside: Iterable[Beside]) -> Iterator[tuple[str, str]]:
    """Printed values and statements beside ours; plotted bars are in the rows."""
    for row in beside:
        value = row.value
        if value.quantity == STATEMENT:
            yield f"{entry.id}: {value.layer}: {value.value}", f"{row.ours}: {VERDICTS[row.agrees]}"
        elif value.value != "drawn only":
            printed = f"{value.value} {value.unit}".strip()
            yield (
                f"{entry.id}: {value.printed or value.layer}: {value.quantity}",
                (f"printed {printed}, ours {row.ours}: {VERDICTS[row.agrees]}"),
            )


def _zeros(result: Result) -> dict[str, Any]:
    """Densities of the matrix that a layer with the engine reads, and of its lines, with where its masks are from."""
    if result.run is None or "line_density" not in result.run.counters:
        return {}
    config, counters = result.job.config, result.run.counters
    masks = {"masks": config["masks"], "iteration": config["iteration"], "density": None} if config["masks"] else {}
    return masks | {"matrix_density": counters["density"], "line_density": counters["line_density"]}


def _row(entry: Published, planned: Planned, pair: Pair) -> dict[str, Any]:
    job = planned.ours
    assert pair.speedup and pair.baseline_us
    times = dict.fromkeys(("median_us", "q1_us", "q3_us"), pair.baseline_us / pair.speedup)
    times["baseline_us"] = pair.baseline_us
    return ROW | times | {
        "workload": job.network, "layer": job.layer, "batch": job.batch, "entry": entry.id, "point": pair.point.title,
        "impl": str(job.config.get("control", "fission_unit")).replace("-", "_"), "device": job.device.name,
        **{name: job.config.get(name) for name in ("weights", "density", "pattern")},
        "speedup": pair.speedup, **pair.columns(),
        **({"conversion": job.config["conversion"]} if "conversion" in job.config else {}),
    }  # fmt: skip


if __name__ == "__main__":
    main()

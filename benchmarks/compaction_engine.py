"""Claim: attribution of the compaction engine's speedup on whole networks, with upper bounds.

``gains``: the convolutions of AlexNet, VGG-16 and ResNet-18 at the middle of the sparsities of the study (Dong 2020,
table 6.5 and section 6.6), at smaller batches that also fill the device. Both memory models are used, with the sparse
kernel that loads weights per column and with that of the published listing, which loads one tile for all; one of them
also with more search units. AlexNet's speedup is also attributed to the changes. Layers of equal shape are simulated
once and counted as often as they occur. Runs are sampled, or complete if sampling fails. Stored results are not
simulated again, so an interrupted run continues.

``speed``: simulation time in one process: AlexNet's convolutions complete and sampled, dense at batch 128 and with the
engine on banked memory at batch 16.

Run: python -m benchmarks.compaction_engine gains
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import results
from lamina import measure
from lamina.pipeline.simulate import Planner, Simulated, simulate
from lamina.pipeline.simulate.compaction import Gains, LayerGain, gains, plan
from lamina.simulate.compaction_engine.attribution import NEEDED
from lamina.simulate.compaction_engine.unit import Control
from lamina.simulate.engines import Processes
from lamina.simulate.jobs import Job, Value, execute
from lamina.store import Store, open_store

NETWORKS = {"alexnet": (16, 0.45), "vgg16": (1, 0.55), "resnet18": (4, 0.6)}
"""Batch size, and input density of every convolution except the first, whose input is an image."""
CASES = (
    ("mi6", "column", 16),
    ("mi6", "tile", 16),
    ("mi6", "tile", 256),
    ("mi6-silicon", "column", 16),
    ("mi6-silicon", "tile", 16),
)
"""Device, weight loading of the sparse kernel, and number of search units."""
TAKEN_APART = ("alexnet", "mi6", "column", 16)
PUBLISHED = {"alexnet": 3.4, "vgg16": 2.14, "resnet18": 2.02}
PATTERN = "spatial"
WORKERS = 2
CACHE = Path(tempfile.gettempdir()) / "lamina_compaction_engine.db"


def main() -> None:
    args = results.arguments("compaction_engine", what=("gains", "speed"))
    rows, summary = (gained if args.what == "gains" else timed)()
    print(results.write(f"compaction_{args.what}", "cpu", rows, summary, args, f"compaction_engine {args.what}"))
    for name, value in summary.items():
        print(f"{name}: {value}")


def gained() -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Rows of every layer and case, and the speedup of each network."""
    rows: list[dict[str, Any]] = []
    summary = {}
    with open_store(CACHE) as store:
        for network, (batch, density) in NETWORKS.items():
            for device, weights, searchers in CASES:
                controls = NEEDED if (network, device, weights, searchers) == TAKEN_APART else ()
                settings: dict[str, Value] = {
                    "network": network,
                    "batch": batch,
                    "device.preset": device,
                    "weights": weights,
                }
                settings |= {"searchers": searchers, "density": density, "pattern": PATTERN, "sampling": True}
                own, times = _distinct(plan(settings, controls=controls))
                done = gains(own, lambda jobs: _simulated(jobs, store))
                rows += [
                    row for layer in done.layers for row in _rows(layer, network, batch, weights, searchers, times)
                ]
                case = f"{device}, weights by {weights}, {searchers} searches"
                name = f"{network}, {case}: speedup (published {PUBLISHED[network]}x)"
                summary[name] = _total(done, times)
                print(name, summary[name], flush=True)
    return rows, summary


def _distinct(planned: Mapping[str, dict[Control, Job]]) -> tuple[dict[str, dict[Control, Job]], dict[str, int]]:
    """The first layer of each shape, without the first layer, and the number of layers of each shape."""
    first: dict[object, str] = {}
    times: dict[str, int] = {}
    for name in list(planned)[1:]:
        product = planned[name]["engine"].gemm
        shape = (product.m, product.n, product.k, product.map, product.window)
        own = first.setdefault(shape, name)
        times[own] = times.get(own, 0) + 1
    return {name: planned[name] for name in times}, times


def _simulated(jobs: Sequence[Job], store: Store) -> Simulated:
    """Sampled runs, then complete runs of those that failed."""
    engine = Processes(WORKERS)
    done = simulate(jobs, store, engine, target=jobs[0].network, config={})
    if not done.failed:
        return done
    whole = {
        each.job.key: Job(**{**vars(each.job), "options": each.job.options.model_copy(update={"sampling": False})})
        for each in done.failed
    }
    again = simulate(list(whole.values()), store, engine, target=jobs[0].network, config={})
    found = {each.job.key: each for each in again.results}
    return Simulated(
        done.run,
        tuple(found[whole[each.job.key].key] if each.job.key in whole else each for each in done.results),
        done.found,
    )


def _rows(
    layer: LayerGain, network: str, batch: int, weights: str, searchers: int, times: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    told = layer.to_dict()
    device = layer.jobs["engine"].device
    kept: dict[str, Value | None] = {
        key: value for key, value in told.items() if not key.endswith(("cycles", "relative_error"))
    }
    for control, run in layer.runs.items():
        us = run.cycles / device.clock_ghz / 1e3 if run else 0.0
        error = (run.relative_error or 0.0) if run else 0.0
        common = {"workload": network, "layer": layer.jobs["engine"].layer, "phase": "forward", "precision": "fp32"}
        common |= {"layout": "nchw", "impl": control.replace("-", "_"), "timing": "simulated", "l2": "warm"}
        interval = {"median_us": us, "q1_us": us * (1 - error), "q3_us": us * (1 + error), "n": 1}
        more = kept if control == "engine" else {"speedup": layer.speedup(control)}
        yield {
            **common, **interval, "rel_error": None, "unchecked": "simulated", "batch": batch, "device": device.name,
            "weights": weights, "searchers": searchers, "occurs": times[layer.jobs["engine"].layer], **more,
        }  # fmt: skip


def _total(done: Gains, times: Mapping[str, int]) -> str:
    def cycles(control: Control) -> float:
        return sum(times[each.jobs["engine"].layer] * (run.cycles if (run := each.runs[control]) else 0)
                   for each in done.layers)  # fmt: skip

    missing = [each.jobs["engine"].layer for each in done.layers if each.reason]
    return f"{cycles('dense') / cycles('engine'):.2f}x" + (f", without {', '.join(missing)}" if missing else "")


def timed() -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Seconds of AlexNet's convolutions, and line requests per second."""
    execute(Planner().jobs({"network": "lenet5", "batch": 1, "unit": "compaction-engine"})[0])  # compiles
    rows: list[dict[str, Any]] = []
    summary = {}
    for unit, device, batch in (("dense", "mi6", 128), ("compaction-engine", "mi6-silicon", 16)):
        for sampling in (False, True):
            impl = f"{unit.replace('-', '_')}:{'sampled' if sampling else 'whole'}"
            settings: dict[str, Value] = {
                "network": "alexnet",
                "batch": batch,
                "unit": unit,
                "device.preset": device,
                "sampling": sampling,
            }
            for job in Planner().jobs(settings):
                watch = measure.Stopwatch()
                result = execute(job)
                seconds = watch.seconds
                requests = result.run.counters["l1_reads"] + result.run.counters["l1_writes"] if result.run else 0
                rows.append(
                    {"workload": "alexnet", "layer": job.layer, "phase": "forward", "precision": "fp32",
                     "layout": "nchw", "impl": impl, "batch": batch, "timing": "wall", "l2": None,
                     "median_us": 1e6 * seconds, "q1_us": 1e6 * seconds, "q3_us": 1e6 * seconds, "n": 1,
                     "rel_error": None, "unchecked": "the time that simulating takes", "sampled": sampling,
                     "device": device, "lines_per_second": None if sampling else requests / seconds,
                     "reason": result.reason}
                )  # fmt: skip
            mine = [row for row in rows if row["impl"] == impl]
            total, worst = sum(row["median_us"] for row in mine) / 1e6, max(row["median_us"] for row in mine) / 1e6
            refused = sum(bool(row["reason"]) for row in mine)
            how = "sampled" if sampling else "whole"
            summary[f"{unit} on {device}, batch {batch}, {how}"] = (
                f"{total:.1f} s, longest layer {worst:.1f} s, {refused} refused"
            )
    return rows, summary


if __name__ == "__main__":
    main()

"""Claim: what DNNMark's evaluation and ICPE 2018 say of AlexNet's layers, counted on this GPU.

1. The paper's own AlexNet, with LRN, at 227 x 227 in fp32: times at its batch sizes, and at 128 all counters and the
   energy of each phase. Then the primitives of DNNMark's evaluation.
2. L1 bypass: each convolution by an implicit GEMM in fp32, forward and its weight gradient, loads through L1 and past
   it: times, and hit rates by Nsight Compute; ``hit_rates`` is these alone.

The profiles are exported as ``<recipe>_<gpu>.json.xz``: what the project ships. A limit of seconds is kept: what does
not fit is left out, and what was measured is written as soon as it is.

Run: python -m benchmarks.characterization --limit 150
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from benchmarks import results
from benchmarks.profiles import chip
from lamina import measure, pipeline, run
from lamina.cli.again import Again
from lamina.errors import LaminaError
from lamina.explain.launches import Launches
from lamina.measure import counters
from lamina.pipeline.what_if import bypass
from lamina.record import Run
from lamina.spec import Workload
from lamina.store import Store, open_store, write_document

PRECISION: Literal["fp32"] = "fp32"
"""The papers' GPUs have no tensor cores."""
RECIPES = {"alexnet": "papers/dnnmark-alexnet-227", "primitives": "papers/dnnmark-primitives"}
BATCHES = {"alexnet": (16, 64, 128), "primitives": (100,)}
DETAIL = {"alexnet": 128, "primitives": 100}
"""The batch size with counters and energy."""
BYPASS, HIT_RATES = "bypass", "hit_rates"
ALL = (*RECIPES, BYPASS)
LEAST_S = {"alexnet": 60.0, "primitives": 24.0, BYPASS: 15.0, HIT_RATES: 8.0}
"""Seconds without which a stage is not begun; its counters get what the stages behind it leave."""
SPARE_S = 3.0
ENERGY_S = 0.2
ON, OFF = "on", "off"
DURATION = "gpu__time_duration.sum"
L1_METRICS = (
    *(DURATION, "l1tex__t_sector_hit_rate.pct", "lts__t_sector_hit_rate.pct"),
    *("l1tex__t_sectors.sum", "lts__t_sectors_srcunit_tex_op_read.sum", "dram__sectors_read.sum"),
    *("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum"),
)


@dataclass(frozen=True)
class Budget:
    """Seconds that are left of a limit."""

    limit_s: float
    watch: measure.Stopwatch

    @property
    def left_s(self) -> float:
        return self.limit_s - self.watch.seconds


def main() -> None:
    args = parsed()
    if args.iterate:
        iterate(args.device, args.layers)
        return
    spent_s = time.time() - args.since if args.since else 0.0
    budget = Budget(args.limit - spent_s, measure.Stopwatch())
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {"wall_s": {}, "missing": {}}
    args.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, open_store(f"{folder}/lamina.db") as store:
        stages = args.stages.split(",")
        for place, stage in enumerate(stages):
            begun = budget.watch.seconds
            args.reserved = SPARE_S + sum(LEAST_S[later] for later in stages[place + 1 :])
            if budget.left_s < LEAST_S[stage]:
                summary["missing"][stage] = f"{budget.left_s:.0f} s were left"
                continue
            try:
                for row in measured(stage, store, Path(folder), budget, args):
                    rows.append(row)
            except Exception as error:  # the other stages are worth their time
                summary["missing"][stage] = run.one_line(error)
            summary["wall_s"][stage] = round(budget.watch.seconds - begun, 1)
            print(f"== {stage}: {summary['wall_s'][stage]} s, {budget.left_s:.0f} s left", flush=True)
            if rows:
                print(results.write(claim(stages), args.device, rows, summary, args, command()), flush=True)
    print(json.dumps(summary, indent=1))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.characterization")
    parser.add_argument("--output", type=Path, default=results.FOLDER, help="folder of results and recordings")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds for everything")
    parser.add_argument("--since", type=float, default=0.0, help="when the limit began (seconds since 1970)")
    parser.add_argument("--stages", default=",".join(ALL), help=f"of these and {HIT_RATES}, in this order")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=0, help="one batch size instead of the papers', for a trial")
    parser.add_argument("--batches", default="", help="batch sizes of AlexNet instead of the paper's")
    parser.add_argument("--layers", default="", help="convolutions whose hit rates are read, by default all")
    parser.add_argument("--counters", default="full", help="sets and metrics that profiles read")
    parser.add_argument("--energy", type=float, default=ENERGY_S, help="seconds for each phase's energy; 0: none")
    parser.add_argument("--iterate", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def claim(stages: list[str]) -> str:
    """What the results file is called: after its stages, unless it has all."""
    return "_".join(["characterization", *(() if stages == list(ALL) else stages)])


def command() -> str:
    """The command line, but for the folder of results and the time of day."""
    words = sys.argv[1:]
    for name in ("--output", "--since"):
        if name in words:
            at = words.index(name)
            words = words[:at] + words[at + 2 :]
    return " ".join(["characterization", *words])


def measured(
    stage: str, store: Store, folder: Path, budget: Budget, args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """The rows of one stage."""
    if stage == BYPASS:
        yield from bypassed(args.device, args.batch, budget)
        return
    if stage == HIT_RATES:
        yield from only_hit_rates(args.device, args.batch, budget, args.layers)
        return
    known = {one.id for one in store.runs()}
    try:
        profiled(stage, store, folder, budget, args)
    finally:  # what a counter run that took too long leaves behind is worth keeping
        for this in (one for one in store.runs() if one.id not in known):
            path = args.output / f"{Path(RECIPES[stage]).name}_{chip(this)}.json.xz"
            write_document(store.export_run(this.id), path)
            print(f"{path}: {path.stat().st_size >> 10} KiB", flush=True)
    yield from wholes(store, this)


def profiled(stage: str, store: Store, folder: Path, budget: Budget, args: argparse.Namespace) -> Run:
    """A recipe's profile, with counters and energy at one of its batch sizes."""
    detail = args.batch or DETAIL[stage]
    target, _ = pipeline.find(RECIPES[stage])
    chosen = tuple(map(int, args.batches.split(","))) if args.batches and stage == "alexnet" else BATCHES[stage]
    workload = Workload(batch=(args.batch,) if args.batch else chosen, precision=(PRECISION,), device=args.device)
    how = pipeline.Options(energy_s=args.energy, detail_batch=(detail,))
    return pipeline.profile(
        target,
        workload,
        store,
        cache=folder,
        options=how,
        counters=counters.select(args.counters.split(",")),
        counters_limit_s=lambda: max(10.0, budget.left_s - args.reserved),
        replay=Again(RECIPES[stage], workload, how, (), "").iterate,
        command=f"python -m benchmarks.{command()}",
        watch=partial(said, budget),
    )


def said(budget: Budget, event: object) -> None:
    """Print texts; rows and progress are stored."""
    if isinstance(event, str) and not event.startswith("layer "):
        print(f"{budget.watch.seconds:6.1f} s  {event.splitlines()[0]}", flush=True)


def wholes(store: Store, this: Run) -> Iterator[dict[str, Any]]:
    """For each batch size one row: the whole step, or all layers of a list of layers."""
    layers, counted = store.layers(this.id), store.counters(this.id)
    launches = Launches(store.kernels(this.id), counted)
    for coverage in store.coverages(this.id):
        mine = [row for row in layers if row.batch == coverage.batch and row.timing]
        whole = next((row for row in mine if row.phase == "step"), None)
        parts = [row for row in mine if row.phase != "step"]
        if whole is None or whole.timing is None:
            continue
        with_counters = [row for row in parts if any(launch.counters for launch in launches[row.key])]
        energies = [row.energy_j for row in parts if row.energy_j is not None]
        yield {
            **cells(this.target, this.target, "step", coverage.batch, "dense"),
            "timing": whole.timing.clock,
            "l2": "warm",
            **results.quartiles(whole.timing),
            "rel_error": None,
            "unchecked": "the sum of checked layers",
            "coverage": coverage.share,
            "kernels": coverage.kernels,
            "kernels_us": sum(row.timing.median_us for row in parts if row.timing),
            "phases": len(parts),
            "phases_with_counters": len(with_counters),
            "energy_j": whole.energy_j,
            "energy_of_phases_j": sum(energies) if len(energies) == len(parts) else None,
        }


def cells(workload: str, layer: str, phase: str, batch: int, impl: str) -> dict[str, Any]:
    """The columns that say what a row is about."""
    return {
        "workload": workload,
        "layer": layer,
        "phase": phase,
        "precision": PRECISION,
        "layout": "nchw",
        "impl": impl,
        "batch": batch,
    }


def convolutions(device: str, batch: int, layers: str = "") -> Iterator[tuple[str, nn.Conv2d, torch.Tensor]]:
    """The convolutions of the paper's AlexNet, each with a random input of its shape."""
    target, _ = pipeline.find(RECIPES["alexnet"])
    torch.manual_seed(0)
    modules = dict(target.make(None).named_modules())
    for layer in target.resolve(batch or DETAIL["alexnet"]):
        module = modules.get(layer.name)
        if isinstance(module, nn.Conv2d) and (not layers or layer.name in layers.split(",")):
            yield layer.name, module.to(device), torch.randn(layer.inputs[0], device=device)


def bypassed(device: str, batch: int, budget: Budget) -> Iterator[dict[str, Any]]:
    """Each convolution with loads through L1 and past it: two rows a phase, with hit rates where they can be read."""
    found: list[dict[str, Any]] = []
    repeat = measure.Repeat(min_samples=10, max_samples=40, min_time_s=0.05, max_time_s=0.5)
    with run.precision_mode(PRECISION, autotune=False):
        for name, module, x in convolutions(device, batch):
            for phase, swapped in bypass.timed(module, x, repeat).items():
                assert swapped.after is not None
                gain = 1 - swapped.after.median_us / swapped.before.median_us
                for state, timing in ((ON, swapped.before), (OFF, swapped.after)):
                    found.append(
                        cells("dnnmark-alexnet-227", name, phase, x.shape[0], f"{bypass.CHANGE}[l1={state}]")
                        | {"timing": timing.clock, "l2": "warm" if timing.l2 == "-" else timing.l2}
                        | results.quartiles(timing)
                        | {"rel_error": swapped.rel_error, "change": bypass.CHANGE, "detail": bypass.DETAIL}
                        | {"l1": state, "measured_gain": gain}
                    )
                print(f"{budget.watch.seconds:6.1f} s  {name} {phase}: {swapped.before.median_us:.0f} us by .ca, "
                      f"{swapped.after.median_us:.0f} us by .cg, gain {gain:+.2%}", flush=True)  # fmt: skip
            del module, x
    rates: Mapping[tuple[str, str, str], Mapping[str, float]] = {}
    try:
        rates = hit_rates(device, batch, budget)
    except LaminaError as error:
        print(f"no hit rates: {run.one_line(error)}", flush=True)
    for row in found:
        yield row | {"counters": rates.get((row["layer"], row["phase"], row["l1"]))}


def only_hit_rates(device: str, batch: int, budget: Budget, layers: str = "") -> Iterator[dict[str, Any]]:
    """A row for each phase and each kind of load, timed by Nsight Compute while it counts."""
    for (layer, phase, state), found in hit_rates(device, batch, budget, layers).items():
        us = found[DURATION] / 1000
        yield (
            cells("dnnmark-alexnet-227", layer, phase, batch or DETAIL["alexnet"], f"{bypass.CHANGE}[l1={state}]")
            | {"timing": "ncu", "l2": "warm", "median_us": us, "q1_us": us, "q3_us": us, "n": 1, "rel_error": None}
            | {"unchecked": "one kernel, counted; the stage bypass checks it"}
            | {"change": bypass.CHANGE, "detail": bypass.DETAIL, "l1": state, "counters": found}
        )


def hit_rates(
    device: str, batch: int, budget: Budget, layers: str = ""
) -> dict[tuple[str, str, str], dict[str, float]]:
    """Counters of the kernels of each layer and phase, with L1 on and off."""
    if device == "cuda":
        torch.cuda.empty_cache()
    again = ("--iterate", "--device", device, "--batch", str(batch), *(("--layers", layers) if layers else ()))
    child = [sys.executable, "-m", "benchmarks.characterization", *again]
    session = counters.profile(child, L1_METRICS, timeout_s=max(10.0, budget.left_s - 2))
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for one in session.profiled:
        if one.range is None or not one.range.startswith("l1/") or not is_ours(one.name):
            continue
        _, layer, phase, state = one.range.split("/")
        found[layer, phase, state] = {name: value for name, (value, _) in one.metrics.items() if value is not None}
    print(f"hit rates of {len(found)} kernels in {session.passes} passes", flush=True)
    return found


def is_ours(kernel: str) -> bool:
    """Whether a kernel is an implicit GEMM; the sum of its partial results is not."""
    return "forward_kernel" in kernel or "weight_gradient_kernel" in kernel


def iterate(device: str, layers: str) -> None:
    """Run each convolution once more, each variant in a range that Nsight Compute sees."""
    batch = int(parsed().batch)
    place = torch.device(device)
    for name, module, x in convolutions(device, batch, layers):
        calls = bypass.variants(module, x)
        for call in calls.values():
            call()
        for (phase, off), call in calls.items():
            with measure.profiler_capture(place), measure.nvtx_range(f"l1/{name}/{phase}/{OFF if off else ON}"):
                call()


if __name__ == "__main__":
    main()

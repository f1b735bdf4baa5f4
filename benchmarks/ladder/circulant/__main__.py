"""Claim: what each step of the dissertation's chapter 7 is worth on this GPU, against dense and lamina's own kernels.

Layers A, B and C at block sizes 16, 32 and 64, each phase and the whole step, in fp32; dense and lamina's kernels also
in TF32. Phases of a rung that keeps spectra start with what the phases before them made, as in a training step. Each
result is held to the method's definition in float64, and beside its error stands that of plain torch. Where Nsight
Compute may read counters, those of figures 7.8 to 7.11 are read too.

Run: python -m benchmarks.ladder.circulant
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks import results
from benchmarks.ladder.circulant.layers import Contender, contenders
from benchmarks.published import statements
from lamina import measure, run
from lamina.accelerate.papers.circulant_ladder import mapping, rungs
from lamina.accelerate.papers.circulant_ladder.metrics import locality
from lamina.accelerate.runtime.nvrtc import compiled
from lamina.errors import LaminaError, MissingError
from lamina.pipeline.reproduce.live import ladder_counters as counts
from lamina.pipeline.reproduce.live.ladder import BLOCK_SIZES, LAYERS, Calls, Layer, definition
from lamina.record import Timing
from lamina.spec.published import entry

CLAIM = "ladder_circulant"
REPEAT = measure.Repeat(min_samples=10, min_time_s=0.02, max_time_s=0.15)
ONCE = measure.Repeat(min_samples=1, max_samples=1, min_time_s=0, max_time_s=0, warmup=0)
TINY = Layer("tiny", 2, 2, 24, 16)
"""What is run on the CPU, where a thread of the GPU is a thread: to see that everything works, for no figure."""
TINY_BLOCK, TINY_LIMIT = 8, 64
AS_WRITTEN = "ladder[rung=as_written,block_size={k}]"
CLOCKS = {"cuda": ("graph", "events"), "cpu": ("cpu",)}


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ladder.circulant")
    parser.add_argument("--output", type=Path, default=results.FOLDER, help="folder of results")
    parser.add_argument("--device", choices=CLOCKS, default="cuda", help="cpu: a tiny layer, to see that it works")
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=list(LAYERS), help="by default all")
    parser.add_argument("--skip-counters", action="store_true", help="times only")
    return parser.parse_args(words)


def measured(layer: Layer, k: int, device: torch.device, failed: list[str]) -> Iterator[dict[str, Any]]:
    """Rows of a layer at a block size: every contender, phase and clock. What cannot be timed goes to ``failed``."""
    clocks = [measure.clock(name, device) for name in CLOCKS[device.type]]
    limit = mapping.LIMIT if device.type == "cuda" else TINY_LIMIT
    tensors = layer.tensors(k, device)
    exact, plain = (definition(tensors, dtype) for dtype in (torch.float64, torch.float32))
    plain_errors = {phase: worst_error(plain[phase], exact[phase]) for phase in exact}
    del tensors, exact, plain
    for one in contenders(layer, k, device, limit):
        with run.precision_mode(one.precision):
            errors = checked(one, f"{layer.name} k={k} {one.impl}", failed)
            calls = {phase: one.calls[phase] for phase in errors}
            for clock in clocks:
                for phase, timing in timed(clock, calls, device).items():
                    if isinstance(timing, Exception):
                        failed.append(f"{layer.name} k={k} {one.impl} {phase}, {clock.name} clock: {timing}")
                        continue
                    yield {
                        "workload": layer.name, "layer": layer.name, "phase": phase, "precision": one.precision,
                        "layout": "nchw", "impl": one.impl, "block_size": k, "batch": layer.batch,
                        "timing": clock.name, "l2": "warm" if device.type == "cuda" else None,
                        **results.quartiles(timing),
                        "rel_error": errors[phase], "plain_torch_error": plain_errors[phase], "by": "lamina",
                    }  # fmt: skip


def timed(clock: measure.Clock, calls: Calls, device: torch.device) -> dict[str, Timing | Exception]:
    """The time of each phase, or why there is none."""
    try:
        return measure.time_each(clock, calls, repeat=ONCE if device.type == "cpu" else REPEAT)
    except LaminaError as error:
        return dict.fromkeys(calls, error)


def checked(one: Contender, name: str, failed: list[str]) -> dict[str, float]:
    """The error of each phase that runs, against float64."""
    errors = {}
    for phase, call in one.calls.items():
        try:
            errors[phase] = worst_error(call(), one.exact[phase])
        except (LaminaError, RuntimeError) as error:
            failed.append(f"{name} {phase}: {error}")
    return errors


def worst_error(ours: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    return max(run.relative_error([a.view_as(b)], [b]) for a, b in zip(ours, exact, strict=True))


def speedups(rows: Sequence[dict[str, Any]], over: str) -> dict[str, dict[str, float]]:
    """Of each impl over another, by layer, block size, phase and clock, in fp32."""
    times: dict[tuple[str, int, str, str], dict[str, float]] = {}
    for row in rows:
        if row["precision"] == "fp32":
            key = row["layer"], row["block_size"], row["phase"], row["timing"]
            times.setdefault(key, {})[row["impl"]] = row["median_us"]
    found = {}
    for (layer, k, phase, clock), by in times.items():
        if base := by.pop(over.format(k=k), None):
            found[f"{layer} k={k} {phase} {clock}"] = {impl: round(base / us, 3) for impl, us in by.items()}
    return found


def beside(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the dissertation prints of kernel fusion, and the ratio of our whole steps; none where one is missing."""
    clock, found = rows[0]["timing"], []
    for id, over in (("circulant-table-7.4", AS_WRITTEN), ("circulant-figure-7.5", "dense")):
        ours = speedups(rows, over)
        for value in entry(id).values:
            fusion = f"ladder[rung=fusion,block_size={value.layer.partition('=')[2]}]"
            ratio = ours.get(f"{value.layer} step {clock}", {}).get(fusion)
            found.append({"entry": id, "layer": value.layer, "printed": value.value, "ours": ratio})
    return found


def metrics(layer: Layer, k: int) -> dict[str, dict[str, float]]:
    """DR, and MD of what is read of the second factor and of what is written, of each multiplication."""
    sizes = mapping.Sizes(layer.rows, layer.outputs // k, layer.inputs // k, k // 2 + 1)
    found = {}
    for phase, impl in product(rungs.PHASES, ("as_written", "o1", "o2", "o2_argued", "fusion")):
        one = locality(impl, phase, sizes)
        found[f"{layer.name} k={k} {phase} {rungs.IMPLS[impl].plan}"] = {
            "DR": one.dr,
            "MD read": round(one.md_read, 3),
            "MD written": round(one.md_written, 3),
        }
    return found


def counters(layers: Sequence[str], failed: list[str]) -> dict[str, Any]:
    """Counters of layers and the static size of each kernel, as far as they can be had."""
    found: dict[str, Any] = {"rows": []}
    try:
        binary = compiled(rungs.SOURCE.read_text(encoding="utf-8"), counts.architecture(measure.resolve("cuda")))
        found["static_instructions"] = static = counts.static_instructions(binary)
        for layer, k in product(layers, BLOCK_SIZES):
            print(f"{layer} {k}: reading counters", flush=True)
            torch.cuda.empty_cache()  # the other process needs the memory
            try:
                found["rows"] += counts.counted(layer, k, static)
            except MissingError:
                raise
            except LaminaError as error:
                failed.append(f"{layer} k={k} counters: {error}")
    except MissingError as error:
        failed.append(f"counters: {error}")
    return found


def main(words: Sequence[str] | None = None) -> None:
    asked = arguments(words)
    device = measure.resolve(asked.device)
    cases = [(LAYERS[name], k) for name in asked.layers for k in BLOCK_SIZES]
    cases = cases if device.type == "cuda" else [(TINY, TINY_BLOCK)]
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    for layer, k in cases:
        for row in measured(layer, k, device, failed):
            rows.append(row)
            shown = row["phase"], row["precision"], row["impl"], row["timing"]
            print(layer.name, k, *shown, round(row["median_us"], 1), f"{row['rel_error']:.1e}", flush=True)
    counted = counters(asked.layers, failed) if device.type == "cuda" and not asked.skip_counters else {}
    summary = {
        "speedup over dense, fp32": speedups(rows, "dense"),
        "speedup over the algorithm as written": speedups(rows, AS_WRITTEN),
        "printed and ours, whole steps": beside(rows),
        "data reuse and memory distance": {key: one for case in cases for key, one in metrics(*case).items()},
        "printed and ours, counters": statements("circulant-counters", counted.get("rows", [])),
        "counters": counted,
        "failed": failed,
    }
    some = [] if device.type == "cpu" or set(asked.layers) == set(LAYERS) else ["--layers", *asked.layers]
    claim = "_".join([CLAIM, *some[1:]]).lower()
    print(results.write(claim, asked.device, rows, summary, asked, " ".join(["ladder.circulant", *some])))
    for reason in failed:
        print("failed:", reason)


if __name__ == "__main__":
    main()

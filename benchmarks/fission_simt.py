"""Claim: fission on chip, as published, gains nothing on Hopper: conversions take issue slots, shared memory has room.

AlexNet's convolutions 2 to 5 and its first fully connected layer at batch 128 as products on plain cores, in tiles of
4 x 4, 6 x 6 and 8 x 8 outputs a thread, with and without packing in shared memory, of all input channels and of every
other one; beside each the prediction from instructions and bytes, the same tile in float32 of all channels, and the
vendor library in float32. Every result is held to float64.
``counters`` adds what Nsight Compute reads of the units; ``child`` is the process that it looks at.

Run: python -m benchmarks.fission_simt counters
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import results
from benchmarks.circulant_layers import LAYERS, Layer
from lamina import measure, run
from lamina.accelerate.papers.on_chip_fission import functional, simt
from lamina.accelerate.papers.on_chip_fission.config import TILES, OnChip, Tile
from lamina.accelerate.papers.on_chip_fission.cost import predict
from lamina.accelerate.runtime.nvrtc import compiled
from lamina.measure import counters
from lamina.pipeline.reproduce.live.elimination import KEEP
from lamina.pipeline.reproduce.live.fission import kept_channels

NAMES = ("alexnet conv2", "alexnet conv3", "alexnet conv4", "alexnet conv5", "alexnet fc6")
FORMATS: tuple[OnChip, ...] = ("float", "half", "deft16", "deft16q", "e5m2")
KEEP_RATIOS = (1.0, KEEP)
"""Fractions of the input channels that a product reads: all, and what elimination keeps beside fission."""
REPEAT = measure.Repeat(min_samples=10, min_time_s=0.02, max_time_s=0.15)
METRICS = {
    "shared_pct": "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed",
    "fma_pct": "smsp__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
    "alu_pct": "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
    "issue_pct": "smsp__issue_active.avg.pct_of_peak_sustained_active",
}
COUNTED = ("alexnet conv3", "alexnet fc6")
"""Layers whose units are read: one of each kind."""


class Case:
    """A layer with its operands, as a product of ``outputs x depth`` by ``depth x rows``."""

    def __init__(self, layer: Layer) -> None:
        torch.manual_seed(0)
        self.layer = layer
        shape = (layer.outputs, layer.inputs, *(layer.kernel,) * (2 if layer.kernel else 0))
        self.depth = layer.inputs * max(layer.kernel, 1) ** 2
        self.weight = torch.randn(shape, device="cuda") / self.depth**0.5
        self.x = layer.input().cuda()
        self.padding = layer.kernel // 2, layer.kernel // 2
        self.rows = layer.batch * (layer.size**2 if layer.kernel else 1)

    def ours(self, format: OnChip, tile: Tile, weight: Tensor, index: Tensor | None = None) -> Tensor:
        if not self.layer.kernel:
            return functional.linear(self.x, weight, None, index, format=format, tile=tile, impl="kernel")
        return functional.conv2d(
            self.x, weight, None, index, padding=self.padding, format=format, tile=tile, impl="kernel"
        )

    def library(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, padding=self.padding) if self.layer.kernel else F.linear(x, weight)


def cases(names: tuple[str, ...]) -> Iterator[Case]:
    found = {layer.name: layer for layer in LAYERS}
    yield from (Case(found[name]) for name in names)


def compile_all() -> None:
    """Every kernel at once: the compiler holds no lock."""
    major, minor = torch.cuda.get_device_capability()
    wanted = product(("linear", "convolution"), FORMATS, TILES)
    kernels: list[Any] = [simt.kernel(name, format, tile, True, "cuda") for name, format, tile in wanted]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: compiled(one.source, f"sm_{major}{minor}", one.options), kernels))


def timed(call: Callable[[], Tensor], clock: measure.GraphClock) -> dict[str, Any]:
    with torch.cuda.stream(clock.stream):
        time = clock.time(call, repeat=REPEAT)
    return {"median_us": time.median_us, "q1_us": time.q1_us, "q3_us": time.q3_us, "n": time.n}


def measured(case: Case, clock: measure.GraphClock) -> Iterator[dict[str, Any]]:
    """Rows of one layer: the library, then each tile in float32 and packed."""
    layer = case.layer
    exact = case.library(case.x.double(), case.weight.double())
    operations = 2 * layer.outputs * case.rows * case.depth
    common = {
        "workload": "alexnet",
        "layer": layer.name,
        "phase": "forward",
        "precision": "fp32",
        "layout": "nchw",
        "batch": layer.batch,
        "timing": "graph",
        "l2": "warm",
    }
    library = timed(partial(case.library, case.x, case.weight), clock)
    error = run.relative_error([case.library(case.x, case.weight)], [exact])
    rate = operations / library["median_us"] / 1e6
    yield common | {"impl": "library"} | library | {"rel_error": error, "by": "library", "tflops": rate}
    base: dict[Tile, float] = {}
    for keep in KEEP_RATIOS:
        index, weight = kept_channels(layer.inputs, keep, case.x.device), case.weight
        if index is not None:
            weight = weight[:, index].contiguous()
            exact = case.library(case.x[:, index].double(), weight.double())
        for tile, format in product(TILES, FORMATS):
            call = partial(case.ours, format, tile, weight, index)
            error = run.relative_error([call()], [exact])
            times = timed(call, clock)
            base.setdefault(tile, times["median_us"])
            predicted = partial(predict, layer.outputs, case.rows, tile=tile, windows=bool(layer.kernel))
            expected = predicted(depth=round(keep * case.depth), format=format)
            plain = predicted(depth=case.depth, format="float")
            yield common | {
                "impl": f"simt[tile={tile},format={format}{f',keep={keep}' if keep < 1 else ''}]",
                **times,
                "rel_error": error,
                "by": "lamina",
                "tile": tile,
                "format": format,
                "keep": keep,
                "tflops": keep * operations / times["median_us"] / 1e6,
                "predicted_us": expected.us,
                "limit": expected.limit,
                "speedup": base[tile] / times["median_us"],
                "predicted_speedup": plain.us / expected.us,
                "of_library": library["median_us"] / times["median_us"],
            }


def child() -> None:
    """Each kernel once, in a range of its name."""
    compile_all()
    for case in cases(COUNTED):
        wanted = list(product(FORMATS, TILES))
        for format, tile in wanted:
            case.ours(format, tile, case.weight)
        with measure.profiler_capture(torch.device("cuda")):
            for format, tile in wanted:
                with measure.nvtx_range(f"lamina/{case.layer.name}/{format}/{tile}"):
                    case.ours(format, tile, case.weight)


def units() -> dict[tuple[str, str, int], dict[str, float | None]]:
    """What Nsight Compute reads of the units, by layer, format and tile; nothing where it cannot."""
    reason = counters.refusal()
    if reason:
        print(f"no counters: {reason}")
        return {}
    seen = counters.profile(
        [sys.executable, "-m", "benchmarks.fission_simt", "child"], list(METRICS.values()), timeout_s=120
    )
    found = {}
    for one in seen.profiled:
        if one.range is not None and one.name.startswith(("linear", "convolution")):
            _, layer, format, tile = one.range.split("/")
            read = {short: one.metrics[metric][0] for short, metric in METRICS.items()}
            found[layer, format, int(tile)] = read
    return found


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    all_of_ours = [row for row in rows if "format" in row]
    ours = [row for row in all_of_ours if row["keep"] == 1]
    packed = [row for row in ours if row["format"] != "float"]
    both = {
        f"{row['layer']}, {row['keep']:.0%} of the channels, at best": f"{row['speedup']:.2f} x ({row['impl']})"
        for row in sorted(all_of_ours, key=lambda row: row["speedup"])  # the fastest comes last
        if row["format"] != "float" and row["keep"] < 1
    }
    best = {}
    for layer in dict.fromkeys(row["layer"] for row in ours):
        fastest = max((row for row in packed if row["layer"] == layer), key=lambda row: row["speedup"])
        plain = max(row["of_library"] for row in ours if row["layer"] == layer and row["format"] == "float")
        best[layer] = (
            f"fission at best {fastest['speedup']:.2f} x ({fastest['impl']}); "
            f"float32 without it {plain:.0%} of the library"
        )
    off = sorted(abs(row["predicted_speedup"] / row["speedup"] - 1) for row in packed)
    gains = [f"{row['layer']} {row['impl']} {row['speedup']:.2f} x" for row in packed if row["speedup"] > 1]
    return best | both | {
        "gains": gains or "none: fission makes no tile faster on this GPU",
        "predicted speedups": f"median error {off[len(off) // 2]:.1%}, worst {off[-1]:.1%}" if off else "none",
    }


def main() -> None:
    asked: argparse.Namespace = results.arguments("fission_simt", what=("times", "counters", "child"))
    if asked.what == "child":
        child()
        return
    clock = measure.GraphClock("cuda")
    rows: list[dict[str, Any]] = []
    command = f"fission_simt {asked.what}"
    with run.precision_mode("fp32"):
        compile_all()
        for case in cases(NAMES):
            for row in measured(case, clock):
                rows.append(row)
                print(row["layer"], row["impl"], f"{row['median_us']:.1f} us", row.get("speedup"), flush=True)
            path = results.write("fission_simt", "cuda", rows, summary(rows), asked, command)
    if asked.what == "counters":
        read = units()
        for row in rows:
            if row.get("keep") == 1:
                row |= read.get((row["layer"], row["format"], row["tile"]), {})
        path = results.write("fission_simt", "cuda", rows, summary(rows), asked, command)
    print(path)
    for what, shown in summary(rows).items():
        print(f"{what}: {shown}")


if __name__ == "__main__":
    main()

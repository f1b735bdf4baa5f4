"""Claim: training steps of block-circulant layers against dense tensor cores, layer by layer.

A step is the three phases, weight transforms included. Forward passes of layers A and B are timed too, beside the time
to copy the bytes of their three launches. Dense is the better of both layouts with the library's autotuning, in the
same precision and the same run. Both sides are timed as CUDA graphs; CUDA events and the wall clock of eager steps are
reported beside them. Measured are the frequency-domain kernels and the selected implementation, which may be the dense
layer; all apply random sign flips. Circulant outputs and gradients are compared with the dense matrix in float64.
Layers are distributed over the available GPUs, one at a time on each.

The summary has geometric means of layers, and sums over the layers of a network as the papers make them. First
convolutions have too few input channels for a block: they stay dense on both sides of a sum.

Run: python -m benchmarks.circulant_layers [--block-sizes 16,32,64] [--groups fc,conv]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import results
from benchmarks.ahead import compile_candidates
from benchmarks.gpus import Rows, on_every_gpu
from benchmarks.interleaved import interleaved
from lamina import measure, run
from lamina.accelerate import tune
from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.methods.circulant.basis import slot_count
from lamina.accelerate.methods.circulant.kernels import spectral_matmul_cost
from lamina.accelerate.methods.circulant.nn import BlockCirculantConv2d, BlockCirculantLinear
from lamina.accelerate.methods.circulant.reference import dense_matrix
from lamina.accelerate.methods.circulant.spectral.kernels import dft_cost
from lamina.accelerate.methods.circulant.tiles import scaled_fp16_pays
from lamina.build import DTYPES
from lamina.pipeline.convert import prepare_replay, selector
from lamina.spec.published import entry

PRECISIONS = ("fp32", "tf32", "bf16")
REPEAT = measure.Repeat(min_samples=10, min_time_s=0.02, max_time_s=0.15)
FLOORS = ("A", "B")
"""Layers whose forward passes are compared with the time to copy their bytes."""
BLOCK_SIZE = 64
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


def chosen(block_size: int) -> str:
    """The name of the selected implementation."""
    return f"circulant[block_size={block_size},signs=true]"


def kernel(block_size: int) -> str:
    """The name of the frequency-domain kernels."""
    return f"circulant[block_size={block_size},signs=true,impl=kernel]"


@dataclass(frozen=True)
class Layer:
    """A layer of the claim: ``kernel`` 0 is a linear layer; ``padding`` is half the kernel, if not given."""

    group: str
    name: str
    batch: int
    inputs: int
    outputs: int
    kernel: int = 0
    size: int = 1
    stride: int = 1
    times: int = 1
    """How many layers of the network are like it."""
    padding: int = -1
    block_size: int = BLOCK_SIZE

    @property
    def pad(self) -> int:
        """Pixels of padding."""
        return self.kernel // 2 if self.padding < 0 else self.padding

    @property
    def layouts(self) -> tuple[str, ...]:
        """Memory layouts of its inputs."""
        return tuple(FORMATS) if self.kernel else ("nchw",)

    @property
    def stays_dense(self) -> bool:
        """Whether a block is larger than its inputs or outputs."""
        return self.block_size > min(self.inputs, self.outputs)

    def dense(self) -> nn.Module:
        if not self.kernel:
            return nn.Linear(self.inputs, self.outputs, bias=False)
        return nn.Conv2d(self.inputs, self.outputs, self.kernel, self.stride, self.pad, bias=False)

    def circulant(self) -> nn.Module:
        if not self.kernel:
            return BlockCirculantLinear(
                self.inputs, self.outputs, self.block_size, bias=False, signs=True, impl="kernel"
            )
        return BlockCirculantConv2d(
            self.inputs,
            self.outputs,
            self.kernel,
            self.stride,
            self.pad,
            bias=False,
            block_size=self.block_size,
            signs=True,
            impl="kernel",
        )

    def input(self) -> Tensor:
        shape = (self.batch, self.inputs, self.size, self.size) if self.kernel else (self.batch, self.inputs)
        return torch.randn(shape)

    @property
    def window(self) -> Conv2dProblem:
        """The convolution problem that the kernels solve."""
        if not self.kernel:
            return Conv2dProblem(self.batch)
        sides = (self.size,) * 2 + (self.kernel,) * 2 + (self.stride,) * 2 + (self.pad,) * 2
        return Conv2dProblem(self.batch, *sides)

    def moved(self, precision: str) -> tuple[int, int]:
        """Bytes that the transforms of a forward pass read and write, and those of its spectral matmul."""
        q, p, window = -(-self.inputs // self.block_size), -(-self.outputs // self.block_size), self.window
        sides = (window.rows_in, q), (p * window.taps, q), (window.rows_out, p)
        scaled = scaled_fp16_pays(*(rows * blocks * self.block_size for rows, blocks in sides))
        itemsize, low_precision = DTYPES[precision].itemsize, precision == "bf16" or (precision == "tf32" and scaled)
        spectral = 2 if low_precision else 4
        transforms = sum(dft_cost(*side, self.block_size, itemsize, spectral).bytes for side in sides)
        return transforms, spectral_matmul_cost(window, p, q, slot_count(self.block_size), spectral).bytes


LAYERS = (
    Layer("A", "A", 128, 8192, 4096),
    Layer("fc", "alexnet fc6", 128, 9216, 4096),
    Layer("fc", "alexnet fc7", 128, 4096, 4096),
    Layer("fc", "alexnet fc8", 128, 4096, 1000),
    Layer("fc", "vgg16 fc6", 64, 25088, 4096),
    Layer("fc", "vgg16 fc7", 64, 4096, 4096),
    Layer("fc", "vgg16 fc8", 64, 4096, 1000),
    Layer("B", "B", 64, 256, 512, 3, 14),
    Layer("C", "C", 128, 1024, 1024),
    Layer("conv", "alexnet conv1", 128, 3, 96, 11, 227, 4, padding=0),
    Layer("conv", "alexnet conv2", 128, 96, 256, 5, 27),
    Layer("conv", "alexnet conv3", 128, 256, 384, 3, 13),
    Layer("conv", "alexnet conv4", 128, 384, 384, 3, 13),
    Layer("conv", "alexnet conv5", 128, 384, 256, 3, 13),
    Layer("conv", "vgg16 conv1_1", 64, 3, 64, 3, 224),
    Layer("conv", "vgg16 conv1_2", 64, 64, 64, 3, 224),
    Layer("conv", "vgg16 conv2_1", 64, 64, 128, 3, 112),
    Layer("conv", "vgg16 conv2_2", 64, 128, 128, 3, 112),
    Layer("conv", "vgg16 conv3_1", 64, 128, 256, 3, 56),
    Layer("conv", "vgg16 conv3_2", 64, 256, 256, 3, 56, times=2),
    Layer("conv", "vgg16 conv4_1", 64, 256, 512, 3, 28),
    Layer("conv", "vgg16 conv4_2", 64, 512, 512, 3, 28, times=2),
    Layer("conv", "vgg16 conv5_1", 64, 512, 512, 3, 14, times=3),
)


def step_of(module: nn.Module, x: Tensor, gy: Tensor) -> Callable[[], object]:
    """Forward and both gradients of one layer."""
    weights = list(module.parameters())

    def step() -> object:
        return torch.autograd.grad(module(x), [x, *weights], gy)

    return step


def timed_by(clock: measure.Clock, step: Callable[[], object]) -> dict[str, Any]:
    return results.quartiles(clock.time(step, repeat=REPEAT))


def error_of(module: Any, x: Tensor, gy: Tensor) -> float:
    """The largest relative error of output and gradients, against the dense matrix of the blocks in float64."""
    y = module(x)
    ours = [y, *torch.autograd.grad(y, [x, module.weight], gy)]
    circulant = hasattr(module, "to_dense")
    exact = module.double().to_dense() if circulant else module.double()
    wide = x.detach().double().requires_grad_()
    reference = exact(wide)
    dx, dw = torch.autograd.grad(reference, [wide, exact.weight], gy.double())
    if circulant:
        matrix = dense_matrix(module.weight, gy.shape[1], x.shape[1], signs=module.signs)
        (dw,) = torch.autograd.grad(matrix, module.weight, dw)
    pairs = zip(ours, [reference, dx, dw], strict=True)
    return max(run.relative_error([mine], [theirs]) for mine, theirs in pairs)


def candidates(layer: Layer, device: torch.device) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """The circulant layer and its input, in every precision and layout."""
    for precision, layout in product(PRECISIONS, layer.layouts):
        x = layer.input().to(device, DTYPES[precision], memory_format=FORMATS[layout]).requires_grad_()
        module: Any = layer.circulant().to(device, DTYPES[precision])
        module.impl = "auto"
        yield precision, module, x


def measured(layer: Layer, folder: Path) -> Iterator[dict[str, Any]]:
    """Rows of one layer: dense, the frequency-domain kernels and the selection, by precision, layout and clock."""
    device = torch.device("cuda")
    graph, events, wall = measure.GraphClock(device), measure.EventsClock(device), measure.clock("wall", device)
    chooser = selector(device, "graph", training=True)
    prepare_replay(device)  # else the eager steps of the first layers would be timed without it
    if not layer.stays_dense:
        compile_candidates(candidates(layer, device), device, "graph")
    ours, frequency = chosen(layer.block_size), kernel(layer.block_size)
    same = "dense" if layer.stays_dense else frequency
    floored = layer.group in FLOORS
    copy_gbs = measure.measure_roofs(device).copy_gbs if floored else float("nan")
    for precision in PRECISIONS:
        dtype = DTYPES[precision]
        for layout in layer.layouts:
            with run.precision_mode(precision), torch.cuda.stream(graph.stream):
                torch.manual_seed(0)
                x = layer.input().to(device, dtype, memory_format=FORMATS[layout]).requires_grad_()
                dense: Any = layer.dense()
                dense.to(device, dtype, memory_format=FORMATS[layout])
                modules: dict[str, Any] = {"dense": dense}
                reasons, again = {ours: f"a block of {layer.block_size} exceeds its channels"}, layer.stays_dense
                if not layer.stays_dense:
                    modules |= {impl: layer.circulant().to(device, dtype) for impl in (frequency, ours)}
                    modules[ours].impl = "auto"
                    modules[ours], selections = tune(modules[ours], x, chooser)
                    reasons, again = {ours: selections[""].reason}, modules[ours].impl == "kernel"
                gy = torch.randn_like(dense(x))
                if again and not layer.stays_dense:  # timed once
                    del modules[ours]
                steps: dict[tuple[str, str], Callable[[], object]] = {
                    ("step", impl): step_of(module, x, gy) for impl, module in modules.items()
                }
                if floored:
                    steps["forward", frequency] = partial(modules[frequency], x.detach())
                clocks: dict[str, measure.Clock] = {"graph": graph, "events": events}
                timers = {
                    (*key, name): partial(timed_by, clock, step)
                    for key, step in steps.items()
                    for name, clock in clocks.items()
                }
                times = interleaved(timers)
                times |= {(*key, wall.name): timed_by(wall, step) for key, step in steps.items()}
                errors = {impl: error_of(module, x, gy) for impl, module in modules.items()}
                if again:
                    errors[ours] = errors[same]
                    times |= {("step", ours, clock): times["step", same, clock] for clock in (*clocks, wall.name)}
            for (phase, impl, clock), quartiles in times.items():
                yield {
                    "workload": layer.group,
                    "layer": layer.name,
                    "times": layer.times,
                    "block_size": layer.block_size,
                    "phase": phase,
                    "precision": precision,
                    "layout": layout,
                    "impl": impl,
                    "reason": reasons.get(impl),
                    "batch": layer.batch,
                    "timing": clock,
                    "l2": "warm",
                    **quartiles,
                    "rel_error": errors[impl],
                    "by": "lamina",
                } | ({"floor_us": sum(layer.moved(precision)) / copy_gbs / 1e3} if phase == "forward" else {})


def best_us(rows: Rows, clock: str = "graph") -> dict[tuple[str, str, str, int], dict[str, float]]:
    """Microseconds of steps by group, precision, layer and block size, of each implementation in its best layout."""
    best: dict[tuple[str, str, str, int], dict[str, float]] = {}
    for row in rows:
        if row["timing"] == clock and row["phase"] == "step":
            mine = best.setdefault((row["workload"], row["precision"], row["layer"], row["block_size"]), {})
            mine[row["impl"]] = min(mine.get(row["impl"], float("inf")), row["median_us"])
    return best


def speedups(rows: Rows, impl: Callable[[int], str], clock: str = "graph") -> dict[str, Any]:
    """Geometric means by group and precision over layers of a block, an implementation over dense, by one clock."""
    times = {row["layer"]: row["times"] for row in rows}
    ratios: dict[str, list[float]] = {}
    for (group, precision, layer, block_size), us in best_us(rows, clock).items():
        if kernel(block_size) in us and impl(block_size) in us:
            name = f"{group} {precision}" + f" k={block_size}" * (block_size != BLOCK_SIZE)
            ratios.setdefault(name, []).extend([us["dense"] / us[impl(block_size)]] * times[layer])
    return {name: round(prod(values) ** (1 / len(values)), 3) for name, values in ratios.items()}


def sums(rows: Rows) -> dict[str, float]:
    """The time of all layers of a network and kind, dense over the selected implementations, by block and precision."""
    times = {row["layer"]: row["times"] for row in rows}
    found: dict[str, list[float]] = {}
    for (group, precision, layer, block_size), us in best_us(rows).items():
        if group in ("fc", "conv"):
            both = found.setdefault(f"{layer.partition(' ')[0]} {group} {precision} k={block_size}", [0.0, 0.0])
            both[0] += times[layer] * us["dense"]
            both[1] += times[layer] * us[chosen(block_size)]
    return {name: round(dense / ours, 3) for name, (dense, ours) in found.items()}


def beside(rows: Rows) -> list[dict[str, Any]]:
    """The mean speedups of layers of networks in figure 7.7, and ours in fp32."""
    names = {"AlexNet": "alexnet", "VGGNet-16": "vgg16"}
    found = []
    for value in entry("circulant-figure-7.7").values:
        network, _, kind = value.layer.partition(" ")
        word = f"{names.get(network)} {'conv' if kind == 'convolutions' else 'fc'}"
        mine = [row for row in rows if row["layer"].startswith(word) and row["precision"] == "fp32"]
        mine = [row for row in mine if row["block_size"] == BLOCK_SIZE]
        layers = [[row for row in mine if row["layer"] == name] for name in dict.fromkeys(row["layer"] for row in mine)]
        ours = [ratio for layer in layers for ratio in speedups(layer, kernel).values()]
        found.append({"layer": value.layer, "printed": value.value, "ours": round(fmean(ours), 2) if ours else None})
    return found


def over_floors(rows: Rows) -> dict[str, float]:
    """Forward passes over the time to copy their bytes, each in its best layout."""
    found: dict[str, float] = {}
    for row in rows:
        if row["phase"] == "forward" and row["timing"] == "graph":
            name = f"{row['layer']} {row['precision']}"
            found[name] = round(min(found.get(name, float("inf")), row["median_us"] / row["floor_us"]), 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.circulant_layers")
    parser.add_argument("--block-sizes", default=str(BLOCK_SIZE), help="of the blocks, between commas")
    known = dict.fromkeys(one.group for one in LAYERS)
    parser.add_argument("--groups", type=results.names_of(*known), default=",".join(known))
    parser.add_argument("--output", type=Path, default=results.FOLDER, help="folder of results")
    asked = parser.parse_args()
    blocks = [int(word) for word in asked.block_sizes.split(",")]
    groups = asked.groups.split(",")
    layers = [replace(one, block_size=k) for k in blocks for one in LAYERS if one.group in groups]
    claim = "circulant_layers" if len(layers) == len(LAYERS) and blocks == [BLOCK_SIZE] else "circulant_sums"
    command = results.command("circulant_layers", asked, parser)
    for rows in on_every_gpu(shown_while_measured, layers):
        summary = {
            "printed and ours, fp32": beside(rows),
            "forward over the time of its bytes": over_floors(rows),
            "speedup_over_best_dense": speedups(rows, chosen),
            "speedup_of_frequency_kernels_over_best_dense": speedups(rows, kernel),
            "speedup_over_best_dense, eager": speedups(rows, chosen, "wall"),
            "sum of layers, dense over circulant": sums(rows),
        }
        path = results.write(claim, "cuda", rows, summary, asked, command)
    print(path)
    print(summary)


def shown_while_measured(layer: Layer) -> Rows:
    """The rows of a layer, printed as they are measured."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row in measured(layer, Path(folder)):
            rows.append(row)
            if row["timing"] == "graph":
                columns = [row[key] for key in ("layer", "precision", "layout", "phase", "impl")]
                print(*columns, round(row["median_us"], 1), f"{row['rel_error']:.1e}", row["reason"] or "", flush=True)
    torch.cuda.empty_cache()
    return rows


if __name__ == "__main__":
    main()

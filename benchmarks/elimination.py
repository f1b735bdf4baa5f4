"""Claim: layers at half of K take at most 1/1.7 of the dense layer's time, reorganisation included.

AlexNet's conv2 to conv5 and fc6, inference, fp32, TF32 and bf16. Dense is the better of both layouts with the library's
autotuning. Against it stand the ways to bring the inputs that stay to the product: a gather before it, the paper's
swaps, a view of a prefix (which the library copies in convolutions), a kernel that packs them, a table or a prefix
inside the product's loads, and ``folded``, the plain layer that is left when the producer's outputs were removed, by
the library or by the kernel. ``fastest`` is what the choice by measurement makes of the layer as it was eliminated. All
are timed as CUDA graphs in the same run. Each result is first held to the dense layer with zeros for what went, in
float64.

Run: python -m benchmarks.elimination all few
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import results
from lamina import measure, run
from lamina.accelerate import tune
from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.elimination.convert import build, choose
from lamina.accelerate.methods.elimination.reference import swap_order
from lamina.accelerate.methods.elimination.tuning import tune as tune_tile
from lamina.build import DTYPES
from lamina.pipeline.convert import selector

PRECISIONS = ("fp32", "tf32", "bf16")
REPEAT = measure.Repeat(min_samples=10, min_time_s=0.02, max_time_s=0.15)
QUICK = measure.Repeat(min_samples=3, min_time_s=0.0, max_time_s=0.02, warmup=1)
KEEP = 0.5
TILES = {"first": 1, "few": 4, "all": None}
"""How many tiles are timed where it matters most; elsewhere the sizes decide."""


@dataclass(frozen=True)
class Layer:
    """A layer of the claim: ``kernel`` 0 is a linear layer."""

    name: str
    batch: int
    inputs: int
    outputs: int
    kernel: int = 0
    size: int = 1

    def dense(self, inputs: int | None = None) -> nn.Module:
        if not self.kernel:
            return nn.Linear(inputs or self.inputs, self.outputs)
        return nn.Conv2d(inputs or self.inputs, self.outputs, self.kernel, padding=self.kernel // 2)

    def input(self) -> Tensor:
        shape = (self.batch, self.inputs, self.size, self.size) if self.kernel else (self.batch, self.inputs)
        return torch.randn(shape)


LAYERS = {
    "conv": (
        Layer("conv2", 128, 96, 256, 5, 27),
        Layer("conv3", 128, 256, 384, 3, 13),
        Layer("conv4", 128, 384, 384, 3, 13),
        Layer("conv5", 128, 384, 256, 3, 13),
    ),
    "fc": tuple(Layer(f"fc6 batch {batch}", batch, 9216, 4096) for batch in (1, 16, 128)),
}
LAYERS["all"] = LAYERS["conv"] + LAYERS["fc"]

GROUPED = Eliminated(keep=KEEP, recovery="none", group=8, align=8)
"""Neighbours stay together, so that channels-last loads are wide."""

SINGLE = Eliminated(keep=KEEP, recovery="none")
SWAP = replace(SINGLE, order="swap")
TAPS = Eliminated(keep=KEEP, recovery="none", by="tap")


@dataclass(frozen=True)
class Way:
    """One way to compute a layer at half of its inputs.

    With ``prefix`` these are the first of all, as a fold orders them; ``folded``, they are all there is.
    """

    impl: str
    config: Eliminated
    layout: str
    prefix: bool = False
    folded: bool = False

    @property
    def name(self) -> str:
        options = f"keep={KEEP},impl={self.impl}"
        options += f",group={self.config.group}" if self.config.group > 1 else ""
        options += f",by={self.config.by}" if self.config.by != "channel" else ""
        return f"eliminated[{options}{',prefix' * self.prefix}{',folded' * self.folded}]"


def ways(layer: Layer) -> Iterator[Way]:
    """Every way that is compared, in the layouts it is meant for."""
    for layout in ("nchw", "nhwc") if layer.kernel else ("nchw",):
        yield Way("gather", SINGLE, layout)
        yield Way("swap", SWAP, layout)
        yield Way("pack", SINGLE, layout)
        yield Way("slice", SINGLE, layout, prefix=True)
        yield Way("slice", SINGLE, layout, folded=True)
    last = "nhwc" if layer.kernel else "nchw"
    for config in (SINGLE, GROUPED, *([TAPS] if layer.kernel else [])):
        yield Way("kernel", config, last)
    yield Way("kernel", SINGLE, last, prefix=True)
    yield Way("kernel", SINGLE, last, folded=True)
    yield Way("fastest", SINGLE, last)


def prepared(layer: Layer, way: Way, dense: nn.Module, index: Tensor, x: Tensor) -> tuple[nn.Module, Tensor, nn.Module]:
    """The layer, its input, and the dense layer with zeros that it must agree with."""
    places = torch.arange(len(index), device=index.device) if way.prefix or way.folded else index
    impl: Any = "auto" if way.impl == "fastest" else way.impl
    module: Any = build(dense, places, replace(way.config, impl=impl))
    twin = module.to_dense()
    if not way.folded:
        return module, x, twin
    plain = layer.dense(len(places)).to(x)
    plain.load_state_dict({key: value for key, value in module.state_dict().items() if key != "index"})
    layout = torch.channels_last if way.layout == "nhwc" else torch.contiguous_format
    x = x[:, places].contiguous(memory_format=layout) if layer.kernel else x[:, places].contiguous()
    if way.impl == "kernel":
        return build(plain, places, replace(way.config, keep=1.0, impl="kernel")), x, twin
    return plain, x, twin


@cache
def searched(layer: Layer) -> tuple[nn.Module, dict[Eliminated, Tensor], dict[str, float]]:
    """A dense layer, the inputs to keep by each configuration, and the wall time of each search."""
    torch.manual_seed(0)
    dense, found, seconds = layer.dense().to("cuda"), {}, {}
    for config in dict.fromkeys((SINGLE, GROUPED, *(way.config for way in ways(layer) if way.config != SWAP))):
        watch = measure.Stopwatch()
        found[config] = choose(dense, config)
        found[config].tolist()  # waits for the device
        seconds[f"{layer.name} by={config.by} group={config.group}"] = round(watch.seconds, 3)
    places = found[SINGLE]
    found[SWAP] = places.new_tensor(swap_order(places.tolist(), layer.inputs))
    return dense, found, seconds


def timed(clock: measure.GraphClock, call: Callable[[], object], repeat: measure.Repeat = REPEAT) -> dict[str, Any]:
    t = clock.time(call, repeat=repeat)
    return {"median_us": t.median_us, "q1_us": t.q1_us, "q3_us": t.q3_us, "n": t.n}


@torch.no_grad()
def measured(layer: Layer, most: int | None, searches: dict[str, float]) -> Iterator[dict[str, Any]]:
    """Rows of one layer: dense in both layouts and every way, in each precision."""
    device = torch.device("cuda")
    clock, chooser = measure.GraphClock(device), selector(device, "graph", training=False)
    original, places, seconds = searched(replace(layer, name=layer.name.split()[0], batch=1))
    searches.update(seconds)
    image = layer.input().to(device)
    for precision in PRECISIONS:
        dtype = DTYPES[precision]
        common = {
            "workload": "alexnet", "layer": layer.name, "phase": "forward", "precision": precision,
            "batch": layer.batch, "timing": "graph", "l2": "warm", "by": "lamina",
        }  # fmt: skip
        with run.precision_mode(precision), torch.cuda.stream(clock.stream):
            for way in (*(Way("dense", SINGLE, layout) for layout in ("nchw", "nhwc")), *ways(layer)):
                if way.layout == "nhwc" and not layer.kernel:
                    continue
                dense = layer.dense().to(device, dtype)
                dense.load_state_dict(original.state_dict())
                layout = torch.channels_last if way.layout == "nhwc" else torch.contiguous_format
                x = image.to(dtype)
                x = x.contiguous(memory_format=layout) if layer.kernel else x
                module: Any = dense
                twin = copy.deepcopy(dense)
                if way.impl != "dense":
                    module, x, twin = prepared(layer, way, dense, places[way.config], x)
                if layer.kernel:
                    module = module.to(memory_format=layout)
                tile: tuple[int, ...] = ()
                shown: dict[str, str] = {}
                if way.impl == "fastest":
                    module, selections = tune(module, x, chooser, dense=True)
                    shown["selected"], shown["reason"] = selections[""].impl, selections[""].reason
                    tile = getattr(module, "tile", ())
                elif way.impl == "kernel" or (way.impl == "pack" and layer.kernel):
                    tune_tile(
                        module, x, lambda call: timed(clock, call, QUICK)["median_us"],
                        most if way.prefix or way.folded else 1, module.impl,
                    )  # fmt: skip
                    tile = module.tile
                exact = twin.double()(_all_inputs(x, way, layer).double())
                error = run.relative_error([module(x)], [exact])
                name = "dense" if way.impl == "dense" else way.name
                row = common | shown | {"layout": way.layout, "impl": name, "rel_error": error, "tile": list(tile)}
                yield row | timed(clock, lambda module=module, x=x: module(x))  # type: ignore[misc]


def _all_inputs(x: Tensor, way: Way, layer: Layer) -> Tensor:
    """What the dense layer reads: a folded layer's input, with zeros for what its producer no longer computes."""
    if not way.folded:
        return x
    full = x.new_zeros(x.shape[0], layer.inputs, *x.shape[2:])
    full[:, : x.shape[1]] = x
    return full


def speedups(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Dense in its better layout over each way in its better layout, by layer and precision."""
    best: dict[tuple[str, str, str], float] = {}
    for row in rows:
        key = row["layer"], row["precision"], row["impl"]
        best[key] = min(best.get(key, float("inf")), row["median_us"])
    found: dict[str, dict[str, float]] = {}
    for (layer, precision, impl), us in best.items():
        if impl != "dense":
            ratio = best[layer, precision, "dense"] / us
            found.setdefault(f"speedup over the best dense layout: {layer}, {precision}", {})[impl] = round(ratio, 3)
    for title, ratios in list(found.items()):
        way = max(ratios, key=lambda impl: ratios[impl])
        found[title.replace("speedup over", "the fastest against")] = {way: ratios[way]}
    return found


def main() -> None:
    asked = results.arguments("elimination", layers=tuple(LAYERS), tiles=tuple(TILES))
    rows: list[dict[str, Any]] = []
    searches: dict[str, float] = {}
    for layer in LAYERS[asked.layers]:
        mine = list(measured(layer, TILES[asked.tiles], searches))
        rows += mine
        for row in mine:
            shown = row["precision"], row["layout"], row["impl"], round(row["median_us"], 1), f"{row['rel_error']:.1e}"
            print(layer.name, layer.batch, *shown, *row["tile"], flush=True)
    summary: dict[str, dict[str, float]] = {**speedups(rows), "seconds of the search": searches}
    command = f"elimination {asked.layers} {asked.tiles}"
    claim = "elimination" if asked.layers == "all" else f"elimination_{asked.layers}"
    print(results.write(claim, "cuda", rows, summary, asked, command))
    for key, ratios in summary.items():
        print(key, ratios)


if __name__ == "__main__":
    main()

"""Claim: a network converted with ``select="measure"`` is never slower than the user's own, layer by layer and whole.

Each layer of each network is converted by each method in each precision and mode. A layer keeps its dense module unless
an implementation is faster by more than the spread. The benchmark then times every selected implementation once more
against the user's dense layer, interleaved, on fresh graphs. It times the whole step of the converted network against
that of the dense one too. Layers of the same sizes are measured once, and compared with float64. What keeps the dense
module is that module, so its speedup is 1 by definition.

fp32 and tf32 run in float32; bf16 runs under autocast, as users train. Images are channels-last except in fp32. Methods
that train are timed with their backward passes; weight-only and fused layers are timed for inference.

A cell is a network, precision, method and mode. With ``--limit``, none is started after so many seconds. Networks,
precisions and methods are distributed over the available GPUs, one at a time on each; results are written after each.
``--resume`` takes the finished cells of earlier results and measures the others.

Run: python -m benchmarks.never_slower [--networks alexnet,vgg16] [--precisions bf16] [--methods circulant]
     [--limit 540] [--resume FILE]
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, product
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import lamina
from benchmarks import results
from benchmarks.ahead import autocast, compile_conversion
from benchmarks.gpus import Rows, on_every_gpu
from lamina import build, measure, run
from lamina.accelerate.methods.circulant.nn import with_activations
from lamina.accelerate.select import DENSE, LayerCall, Timer, layer_step, observe
from lamina.build.models import ZOO, create
from lamina.pipeline.convert import convert, timer
from lamina.pipeline.study.ahead import AHEAD
from lamina.record import ConvertedLayer, Mode, Timing


@dataclass(frozen=True)
class Network:
    """A network of the zoo at a batch size; ``options`` are its builder's."""

    name: str
    batch: int
    options: tuple[tuple[str, int], ...] = ()

    def build(self) -> nn.Module:
        entry = ZOO[self.name]
        return create(self.name, entry.classes, **dict(self.options))

    def example(self, device: torch.device) -> Tensor:
        entry = ZOO[self.name]
        shape = (self.batch, *entry.input)
        if entry.kind == "tokens":
            return torch.randint(entry.classes, shape, device=device)
        return torch.randn(shape, device=device)


NETWORKS = (
    Network("alexnet", 128),
    Network("vgg16", 64),
    Network("resnet50", 64),
    Network("vit_base", 32),
    Network("gpt2_block", 8),
    Network("lstm", 64, (("width", 1024),)),
)
SMOKE = (Network("lenet5", 4),)
METHODS: Mapping[str, tuple[Any, bool]] = {
    "circulant": (lamina.Circulant(64, rescale=True, signs=True), True),
    "eliminated": (lamina.Eliminated(keep=0.5), True),
    "sparse": (lamina.Sparse(), True),
    "weight-only": (lamina.WeightOnly(), False),
    "fused": (lamina.Fusion(), False),
}
"""Each method's configuration, and whether it is timed in training."""

Cell = tuple[str, str, str, Mode]
"""A network, a precision, a method and a mode."""

Piece = tuple[str, str, str, tuple[Mode, ...], float]
"""A network, a precision, a method, modes, and the time after which no cell is started."""

PRECISIONS = ("fp32", "tf32", "bf16")
LOWEST = 0.98
"""Dense over selected that no layer may fall below."""

ROUNDS = 9
LIMIT_S = 1.0
"""Of rounds for each layer and whole step, at both times; there are three at least. All fit, unless a step is long."""


def relative_error(module: nn.Module, call: LayerCall) -> float:
    """Of a layer's output, to that of its dense equivalent in float64."""
    dense: nn.Module = module.to_dense() if hasattr(module, "to_dense") else module  # type: ignore[operator]
    exact = copy.deepcopy(dense).double()
    _, args, kwargs = call.arguments()
    with torch.no_grad():
        ours = layer_step(module, call, "eager", training=False)()
        with torch.autocast(call.tensors[0].device.type, enabled=False):
            theirs = exact(*(x.double() if isinstance(x, Tensor) else x for x in args), **kwargs)
    pairs = zip(tree_leaves(ours), tree_leaves(theirs), strict=True)
    squares = [((a.double() - b).square().sum(), b.square().sum()) for a, b in pairs]
    return math.sqrt(float(sum(error for error, _ in squares) / sum(size for _, size in squares)))


def measured(
    network: Network, precision: str, mode: Mode, method: str, device: torch.device
) -> Iterator[dict[str, Any]]:
    """A row for each distinct layer that the method can replace, and one for the whole step."""
    model, x, config, training, layout = prepared(network, precision, method, device)
    dense = build.copied(model)
    common = {
        "workload": network.name, "precision": precision, "layout": layout, "batch": network.batch, "mode": mode,
        "timing": "graph" if mode == "graph" else "wall" if device.type == "cuda" else "cpu",
        "l2": "warm" if device.type == "cuda" else None, "impl": method, "phase": "step", "training": training,
    }  # fmt: skip
    clock = timer(device, mode, ROUNDS, LIMIT_S)
    with run.precision_mode(precision), autocast(precision, device):
        model, record = convert(
            model, config, example=x, select="measure", mode=mode, training=training, limit_s=LIMIT_S
        )
        selected = distinct(record.layers)
        with torch.set_grad_enabled(training):
            calls = observe(dense, [layer.layer for layer in selected], x)
            whole = observe(dense, [""], x)[""]
        for layer in selected:
            unit = [one.layer for one in record.layers if one.selection is layer.selection]
            yield common | again(layer, unit, model, dense, calls[layer.layer], mode, training, clock)
        modules = {"dense": dense, "selected": model} if record.replaced else {"dense": dense}
        times = clock({name: layer_step(one, whole, mode, training) for name, one in modules.items()})
        yield common | whole_row(network, times, record.layers)


def prepared(
    network: Network, precision: str, method: str, device: torch.device
) -> tuple[nn.Module, Tensor, Any, bool, str]:
    """The dense model, its input, the configuration, whether it trains, and the layout."""
    config, training = METHODS[method]
    channels_last = precision != "fp32" and ZOO[network.name].kind == "image"
    torch.manual_seed(0)
    model = network.build().to(device).train(training)
    x = network.example(device)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
    return model, x, config, training, "nhwc" if channels_last else "nchw"


def compile_kernels(network: Network, precision: str, method: str, device: torch.device) -> None:
    """Compile the candidates' kernels in threads, where a method's operators run without what they wrote."""
    if method in AHEAD and device.type == "cuda":
        model, x, config, training, _ = prepared(network, precision, method, device)
        compile_conversion(model, x, config, precision, training, cast=True, device=device)


def distinct(layers: Sequence[ConvertedLayer]) -> list[ConvertedLayer]:
    """One layer of each selection, which counts the others that share it."""
    found: dict[tuple[Any, ...], ConvertedLayer] = {}
    for layer in layers:
        if layer.selection is not None:
            key = layer.selection.impl, tuple(layer.selection.times_us.items())
            found.setdefault(key, layer)
    return [*found.values()]


def again(
    layer: ConvertedLayer,
    unit: Sequence[str],
    model: nn.Module,
    dense: nn.Module,
    call: LayerCall,
    mode: Mode,
    training: bool,
    clock: Timer,
) -> dict[str, Any]:
    """A layer's row: the selection, and both sides timed once more.

    ``unit`` names layers that are fused together. Where a circulant layer computes the activation beside it, so does
    the dense side.
    """
    assert layer.selection is not None
    kept = layer.refusal is not None
    ours = model.get_submodule(layer.layer)
    parts = [dense.get_submodule(name) for name in unit]
    if not kept and " + " in layer.kind:  # the other parts are identities now
        theirs: nn.Module = ours.to_dense()  # type: ignore[operator]
    else:
        theirs = parts[0] if len(parts) == 1 or not kept else nn.Sequential(*parts)
        if not kept and layer.method == "circulant":
            theirs = with_activations(theirs, ours)
    modules = {"dense": theirs} if kept else {"dense": theirs, "selected": ours}
    times = clock({name: layer_step(one, call, mode, training) for name, one in modules.items()})
    both = times_of(times["dense"], times["dense" if kept else "selected"])
    return both | {
        "layer": layer.layer, "executed_impl": DENSE if kept else layer.selection.impl,
        "selection_reason": layer.selection.reason,
        "times_us": dict(layer.selection.times_us), "refusals": dict(layer.selection.refusals),
        "speedup": 1.0 if kept else both["dense_us"] / both["median_us"],
        "rel_error": relative_error(theirs if kept else ours, call),
    }  # fmt: skip


def whole_row(
    network: Network, times: Mapping[str, Timing | Exception], layers: Sequence[ConvertedLayer]
) -> dict[str, Any]:
    """The row of the whole step; of the dense network alone where no layer was replaced."""
    replaced = sum(layer.refusal is None for layer in layers)
    dense, taken = times["dense"], times.get("selected", times["dense"])
    both = times_of(dense, taken)
    return both | {
        "layer": network.name, "phase": "end_to_end", "selection_reason": "",
        "executed_impl": f"{replaced} layers replaced" if replaced else DENSE,
        "speedup": both["dense_us"] / both["median_us"] if replaced else 1.0,
        "rel_error": None, "unchecked": "a converted network has other weights; its layers are checked one by one",
    }  # fmt: skip


def times_of(dense: Any, taken: Any) -> dict[str, Any]:
    """Both times as a row has them.

    Raises:
        RuntimeError: one could not be timed.
    """
    for one in (dense, taken):
        if isinstance(one, Exception):
            raise RuntimeError(f"could not be timed again: {one}") from one
    theirs = {"dense_us": dense.median_us, "dense_q1_us": dense.q1_us, "dense_q3_us": dense.q3_us}
    return results.quartiles(taken) | theirs


def measured_piece(piece: Piece) -> Rows:
    """The rows of a network converted by one method in one precision; a cell that fails leaves a line."""
    name, precision, method, modes, until = piece
    (network,) = (one for one in (*NETWORKS, *SMOKE) if one.name == name)
    device = measure.resolve("cuda" if torch.cuda.is_available() else "cpu")
    rows: Rows = []
    if time.time() < until:
        with suppress(lamina.errors.LaminaError, RuntimeError):  # fails again below, with a message
            compile_kernels(network, precision, method, device)
    for mode in modes:
        here, watch = f"{name} {precision} {mode} {method}", measure.Stopwatch()
        if time.time() >= until:
            print(f"{here}: not started, the time limit is over", flush=True)
            continue
        try:
            some = list(measured(network, precision, mode, method, device))
        except (lamina.errors.LaminaError, RuntimeError) as error:
            print(f"{here}: {type(error).__name__}: {error}", flush=True)
            continue
        rows += some
        for row in some:
            print(
                f"{here} {row['layer']}: {row['executed_impl']} {row['median_us']:.1f} us, "
                f"dense {row['dense_us']:.1f}, {row['speedup']:.3f}x",
                flush=True,
            )
        print(f"{here}: cell of {watch.seconds:.0f} s", flush=True)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return rows


def cell_of(row: Mapping[str, Any]) -> Cell:
    """The cell of a row."""
    return row["workload"], row["precision"], row["impl"], row["mode"]


def finished(rows: Rows, cells: Sequence[Cell]) -> Rows:
    """The rows of those cells that have all of theirs: that of the whole step is the last."""
    whole = {cell_of(row) for row in rows if row["phase"] == "end_to_end"}.intersection(cells)
    return [row for row in rows if cell_of(row) in whole]


def pieces(cells: Sequence[Cell], limit_s: float) -> list[Piece]:
    """The cells, whose modes follow each other, by what one process measures; none starts after so many seconds."""
    until = time.time() + limit_s
    return [(*part, tuple(mode for *_, mode in some), until) for part, some in groupby(cells, itemgetter(0, 1, 2))]


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For each method and mode: layers, how many were replaced, the lowest and the mean speedup, and whole steps."""
    found: dict[str, Any] = {}
    for method, mode in dict.fromkeys((row["impl"], row["mode"]) for row in rows):
        mine = [row for row in rows if (row["impl"], row["mode"]) == (method, mode)]
        layers = [row for row in mine if row["phase"] == "step"]
        steps = [row for row in mine if row["phase"] == "end_to_end"]
        replaced = [row["speedup"] for row in layers if row["executed_impl"] != DENSE]
        found[f"{method}, {mode}"] = {
            "distinct layers": len(layers),
            "replaced": len(replaced),
            "lowest speedup of a replaced layer": round(min(replaced), 3) if replaced else None,
            "geometric mean of replaced layers": round(math.exp(sum(map(math.log, replaced)) / len(replaced)), 3)
            if replaced
            else None,
            f"layers below {LOWEST}": sum(row["speedup"] < LOWEST for row in layers),
            "lowest speedup of a whole step": round(min((row["speedup"] for row in steps), default=1.0), 3),
            "whole steps": {f"{row['workload']} {row['precision']}": round(row["speedup"], 3) for row in steps},
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.never_slower", description=__doc__.split("\n")[0])
    known = [network.name for network in NETWORKS]
    some = results.names_of(*known, *(network.name for network in SMOKE))
    parser.add_argument("--networks", type=some, default=",".join(known))
    parser.add_argument("--precisions", type=results.names_of(*PRECISIONS), default=",".join(PRECISIONS))
    parser.add_argument("--methods", type=results.names_of(*METHODS), default=",".join(METHODS))
    parser.add_argument("--modes", type=results.names_of("eager", "graph"), default="eager,graph")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no cell is started")
    parser.add_argument("--resume", type=Path, help="results whose finished cells are not measured again")
    parser.add_argument("--output", type=Path, default=results.FOLDER, help="folder of results")
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    path = None
    some_methods = "" if asked.methods == ",".join(METHODS) else asked.methods
    claim = "_".join(["never_slower", *filter(None, some_methods.replace("-", "_").split(","))])
    command = results.command("never_slower", asked, parser, without=["resume"])
    axes = (asked.networks, asked.precisions, asked.methods, asked.modes)
    cells = list(product(*(words.split(",") for words in axes)))
    earlier = finished(results.resumed(asked.resume, device), cells)
    done = {cell_of(row) for row in earlier}
    # Written after each piece, so that an end before the last leaves what there is.
    for rows in on_every_gpu(measured_piece, pieces([cell for cell in cells if cell not in done], asked.limit)):
        if rows := earlier + rows:
            path = results.write(claim, device, rows, summary(rows), asked, command)
    print(path or "no cell was measured: nothing is written")


if __name__ == "__main__":
    main()

"""Claim: block-circulant LSTMs, time-delay layers and small linear layers are at least as fast as dense ones.

Training steps of an LSTM, a TDNN layer and a linear layer with 256 to 2048 features, with blocks of 64. Of networks of
LSTMs and of TDNNs these are the hidden layers; input and output layers are timed too, as figure 7.7 of "Exploring High
Performance Deep Neural Networks on GPUs" has them. Dense is the library's layer in the same precision. Each
implementation is timed; the row without one is the selected implementation, timed again as a CUDA graph, by events, and
by the wall clock of eager steps. The summary names layers whose graph is slower than dense. Layers are distributed over
the available GPUs, one at a time on each.

Run: python -m benchmarks.circulant_recurrent [--kinds "lstm input,lstm,lstm output"]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import results
from benchmarks.ahead import compile_candidates
from benchmarks.circulant_layers import BLOCK_SIZE, PRECISIONS, timed_by
from benchmarks.gpus import Rows, on_every_gpu
from lamina import measure, run
from lamina.accelerate import tune
from lamina.accelerate.methods.circulant.nn import BlockCirculantConv1d, BlockCirculantLinear, BlockCirculantLSTM
from lamina.build import DTYPES
from lamina.errors import LaminaError
from lamina.pipeline.convert import prepare_replay, selector

SIZES = (256, 512, 1024, 2048)
BATCH, STEPS, FRAMES = 64, 32, 100
FEATURES, STATES = 440, 183
"""Of TIMIT: an input layer reads 11 frames of 40 features, an output layer gives 3 states of each of 61 phones."""
CANDIDATES = ("kernel", "materialized", "dense")
LEAST = 0.97
"""Of the dense layer's speed."""
UNCHECKED = {"unchecked": "the library's own layer, with weights that are no blocks"}
KINDS: Mapping[str, tuple[Callable[[int], nn.Module], Any, Callable[[int], tuple[int, ...]]]] = {
    "lstm": (
        lambda size: nn.LSTM(size, size),
        BlockCirculantLSTM,
        lambda size: (STEPS, BATCH, size),
    ),
    "tdnn": (
        lambda size: nn.Conv1d(size, size, 3, dilation=3, bias=False),
        BlockCirculantConv1d,
        lambda size: (BATCH, size, FRAMES),
    ),
    "lstm input": (
        lambda size: nn.LSTM(FEATURES, size),
        BlockCirculantLSTM,
        lambda size: (STEPS, BATCH, FEATURES),
    ),
    "lstm output": (
        lambda size: nn.Linear(size, STATES, bias=False),
        BlockCirculantLinear,
        lambda size: (STEPS, BATCH, size),
    ),
    "tdnn input": (
        lambda size: nn.Conv1d(FEATURES, size, 1, bias=False),
        BlockCirculantConv1d,
        lambda size: (BATCH, FEATURES, FRAMES),
    ),
    "tdnn output": (
        lambda size: nn.Conv1d(size, STATES, 1, bias=False),
        BlockCirculantConv1d,
        lambda size: (BATCH, size, FRAMES),
    ),
    "linear": (
        lambda size: nn.Linear(size, size, bias=False),
        BlockCirculantLinear,
        lambda size: (2 * BATCH, size),
    ),
}
"""The dense layer, the circulant one, and the shape of the input; ``lstm`` and ``tdnn`` are hidden layers."""


def part_of(kind: str) -> str:
    """Of a network: ``input``, ``hidden`` or ``output``."""
    return kind.partition(" ")[2] or "hidden"


def step_of(module: nn.Module, x: Tensor, stored: torch.dtype) -> Callable[[], Sequence[Tensor]]:
    """The output and all gradients of a layer; the output gradients are the same random values, in ``stored``."""
    weights = list(module.parameters())
    upstream: list[Tensor] = []

    def step() -> Sequence[Tensor]:
        y = module(x)
        y = y[0] if isinstance(y, tuple) else y
        if not upstream:
            torch.manual_seed(1)
            upstream.append(torch.randn(y.shape, device=y.device).to(stored).to(y.dtype))
        return y, *torch.autograd.grad(y, [x, *weights], upstream[0])

    return step


def made(kind: str, size: int, precision: str, device: torch.device) -> tuple[nn.Module, Any, Tensor]:
    """A dense layer, the circulant one of its weights, and an input."""
    dense_layer, circulant, shape = KINDS[kind]
    torch.manual_seed(0)
    dense = dense_layer(size).to(device, DTYPES[precision])
    x = torch.randn(shape(size), device=device).to(DTYPES[precision]).requires_grad_()
    return dense, circulant.from_dense(dense, BLOCK_SIZE), x


def measured(kind: str, size: int, device: torch.device, folder: Path) -> Iterator[dict[str, Any]]:
    """Rows of one layer: dense, every implementation that supports it, and the selected one."""
    graph = measure.GraphClock(device)
    clocks: tuple[measure.Clock, ...] = (graph, measure.EventsClock(device), measure.clock("wall", device))
    chooser = selector(device, "graph", training=True)
    prepare_replay(device)  # else the first eager steps would be timed without it
    all_made = ((precision, *made(kind, size, precision, device)[1:]) for precision in PRECISIONS)
    compile_candidates(all_made, device, "graph")
    for precision in PRECISIONS:
        with run.precision_mode(precision), torch.cuda.stream(graph.stream):
            dense, layer, x = made(kind, size, precision, device)
            wide = x.detach().double().requires_grad_()
            exact = step_of(layer.to_dense().double(), wide, x.dtype)()[:2]
            common = {"workload": kind, "layer": f"{kind} {size}", "phase": "step", "precision": precision,
                      "layout": "nchw", "batch": BATCH if "lstm" in kind else x.shape[0], "size": size,
                      "part": part_of(kind), "l2": "warm", "by": "lamina"}  # fmt: skip

            def rows(module: nn.Module, impl: str, reason: str | None = None) -> Iterator[dict[str, Any]]:
                step = step_of(module, x, x.dtype)  # noqa: B023  (used before the next turn)
                ours = step()[:2]
                pairs = zip(ours, exact, strict=True)  # noqa: B023
                error = None if impl == "dense" else max(run.relative_error([a], [b]) for a, b in pairs)
                told = {"impl": impl, "rel_error": error, "reason": reason} | (UNCHECKED if error is None else {})
                for clock in clocks:
                    yield common | told | {"timing": clock.name} | timed_by(clock, step)  # noqa: B023

            yield from rows(dense, "dense")
            for impl in CANDIDATES:
                try:
                    layer.impl = impl
                    yield from rows(layer, f"circulant[block_size={BLOCK_SIZE},impl={impl}]")
                except LaminaError as error:
                    yield common | {"impl": f"circulant[block_size={BLOCK_SIZE},impl={impl}]", "timing": None,
                                    "refused": str(error)}  # fmt: skip
            layer.impl = "auto"
            layer, selections = tune(layer, x, chooser)
            yield from rows(layer, f"circulant[block_size={BLOCK_SIZE}]", selections[""].reason)


def speeds(rows: Sequence[Mapping[str, Any]], clock: str = "graph") -> dict[str, float]:
    """Speedups of the selected implementation over dense, by layer and precision, by one clock."""
    times = {(r["layer"], r["precision"], r["impl"]): r["median_us"] for r in rows if r["timing"] == clock}
    ours = f"circulant[block_size={BLOCK_SIZE}]"
    return {
        f"{layer} {precision}": round(us / times[layer, precision, ours], 3)
        for (layer, precision, impl), us in times.items()
        if impl == "dense" and (layer, precision, ours) in times
    }


def shown_while_measured(layer: tuple[int, str]) -> Rows:
    """The rows of a layer type of a size, printed as they are measured."""
    with tempfile.TemporaryDirectory() as folder:
        rows = list(measured(layer[1], layer[0], torch.device("cuda"), Path(folder)))
    for row in rows:
        if row["timing"] in ("graph", None):
            told = row.get("refused") or f"{row['median_us']:.1f} {row['rel_error']} {row['reason'] or ''}"
            print(row["layer"], row["precision"], row["impl"], told, flush=True)
    return [row for row in rows if row["timing"]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.circulant_recurrent")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of layers")
    parser.add_argument("--output", type=Path, default=results.FOLDER, help="folder of results")
    asked = parser.parse_args()
    claim, command = "circulant_recurrent", "circulant_recurrent"
    if asked.kinds != parser.get_default("kinds"):
        claim += "_" + asked.kinds.replace(" ", "_").replace(",", "_")
        command += f' --kinds "{asked.kinds}"'
    for rows in on_every_gpu(shown_while_measured, list(product(SIZES, asked.kinds.split(",")))):
        found = speeds(rows)
        slower = [f"{name}: {ratio}" for name, ratio in found.items() if ratio < LEAST]
        summary = {
            "dense over circulant": found,
            f"below {LEAST}": "; ".join(slower) or "none",
            "dense over circulant, eager": speeds(rows, "wall"),
        }
        path = results.write(claim, "cuda", rows, summary, asked, command)
    print(path)
    print(summary)


if __name__ == "__main__":
    main()

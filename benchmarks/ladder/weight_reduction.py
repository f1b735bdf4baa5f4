"""Claim: partials of circulant weight gradients are added by vectors, and column sums of many rows by more threads.

Rungs of the kernel behind `fused_weight_gradient`, timed together with it and with the gradient of the bias:
``[reduction=numbers]``, one number a load; ``[reduction=predicated]``, whose last loads are predicated off, so that
none waits for the one before; ``[reduction=vectors]``, as layers run it. Layers of an MLP, of vision transformers and
of GPT-2, and a 1x1 convolution of many pixels, in TF32 and bf16, in CUDA graphs, with operands that are not in L2. The
prediction is the time to copy the bytes of the rows. Gradients are compared with float64.

Run: python -m benchmarks.ladder.weight_reduction
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from benchmarks import results
from benchmarks.gpus import Rows, shown
from benchmarks.ladder.rows import Layer
from benchmarks.ladder.rungs import Changes, Time, beside_predictions, changed, cold_graphs
from lamina import run
from lamina.accelerate.methods.circulant import reference
from lamina.accelerate.methods.circulant.fused_rows import cuda

LAYERS = (
    Layer("mlp up", 2048, 1024, 4096),
    Layer("mlp down", 2048, 4096, 1024),
    Layer("vit-b up", 4096, 768, 3072),
    Layer("vit-b down", 4096, 3072, 768),
    Layer("vit-b up k=32", 4096, 768, 3072, 32),
    Layer("vit-b up k=128", 4096, 768, 3072, 128),
    Layer("vit-l up", 6304, 1024, 4096),
    Layer("gpt2 up", 8192, 768, 3072),
    Layer("conv 1x1", 25088, 128, 512),
    Layer("conv 1x1 k=16", 100352, 64, 256, 16),
)
PRECISIONS = ("tf32", "bf16")
PREVIOUS = Path(__file__).with_suffix(".cu")


def before(predicated: bool) -> Changes:
    """The previous kernel, of which every thread block adds 32 columns."""
    source = cuda.source

    def with_previous(name: str) -> str:
        if name != "weight_reduction":
            return source(name)
        present = (cuda.FOLDER / f"{name}.cu").read_text(encoding="utf-8")
        previous = f"#define PREDICATED {int(predicated)}\n" + PREVIOUS.read_text(encoding="utf-8")
        return source(name).replace(present, previous)

    kernels = lru_cache(maxsize=None)(cuda._kernel.__wrapped__)
    return ((cuda, {"source": with_previous, "_kernel": kernels, "FEW_COLUMNS": 0}),)


def measured(layer: Layer, time: Time, copy_gbs: float, device: torch.device) -> Iterator[dict[str, Any]]:
    """A row of each rung."""
    torch.manual_seed(0)
    k, p, q = layer.block_size, layer.outputs // layer.block_size, layer.inputs // layer.block_size
    x, dy = (torch.randn(layer.rows, width, device=device).to(layer.dtype) for width in (layer.inputs, layer.outputs))
    sums = torch.randn_like(cuda.column_sums_like(dy))
    weight = torch.zeros(p, q, k, dtype=torch.float64, device=device, requires_grad=True)
    exact = torch.autograd.grad(reference.linear(x.double(), weight, None, layer.outputs), weight, dy.double())
    exact += (sums.double().sum(0),)
    ours = torch.empty(p, q, k, device=device), torch.empty(layer.outputs, device=device)
    moved = layer.dtype.itemsize * layer.rows * (layer.inputs + layer.outputs)
    for rung in ("numbers", "predicated", "vectors"):
        with nullcontext() if rung == "vectors" else changed(before(rung == "predicated")):
            for each in ours:
                each.fill_(torch.nan)
            timing = time(lambda: cuda.run_weight_gradient(dy, x, ours[0], column_sums=sums, db=ours[1]))
        yield {
            "workload": "weight reduction", "layer": layer.name, "phase": "backward_weight",
            "precision": layer.precision, "layout": "nchw", "impl": f"fused_rows[reduction={rung}]", "block_size": k,
            "batch": layer.rows, "timing": "graph", "l2": "cold", "by": "lamina", **results.quartiles(timing),
            "rel_error": run.relative_error(list(ours), list(exact)), "predicted_us": moved / copy_gbs / 1e3,
        }  # fmt: skip


def main() -> None:
    asked = results.arguments("ladder.weight_reduction")
    device = torch.device("cuda")
    rows: Rows = []
    with cold_graphs(device) as (time, copy_gbs):
        for precision in PRECISIONS:
            for layer in LAYERS:
                found = measured(replace(layer, precision=precision), time, copy_gbs, device)
                rows += shown(found, ("layer", "precision", "impl", "median_us", "rel_error"))
    summary = beside_predictions(rows, "layer", "precision")
    print(results.write("ladder_weight_reduction", "cuda", rows, summary, asked, "ladder.weight_reduction"))


if __name__ == "__main__":
    main()

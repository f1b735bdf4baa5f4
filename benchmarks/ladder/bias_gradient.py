"""Claim: the gradient of a bias costs next to nothing beside the backward pass of a circulant layer of many rows.

Rungs: ``fused_rows``, the backward pass without a bias; ``[bias=sum]``, with PyTorch's reduction of output gradients
before it; ``[bias=channel_sums]``, with the project's own; ``[bias=kernels]``, as layers run it: rows are added as the
kernel of the input gradient reads them. Layers of an MLP, a vision transformer and GPT-2, in TF32 and bf16, in CUDA
graphs, with operands that are not in L2. The prediction is the time to copy what both gradients must read and write.
Sums are compared with those in float64.

Run: python -m benchmarks.ladder.bias_gradient
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks import results
from benchmarks.gpus import Rows, shown
from benchmarks.ladder.rows import Layer
from benchmarks.ladder.rungs import Time, beside_predictions, cold_graphs
from lamina import run
from lamina.accelerate.common.channel_sums.ops import run_channel_sums
from lamina.accelerate.methods.circulant.fused_rows import ops
from lamina.run import precision_mode

LAYERS = (
    Layer("mlp up", 2048, 1024, 4096),
    Layer("mlp down", 2048, 4096, 1024),
    Layer("vit-b qkv", 6304, 768, 2304),
    Layer("vit-b up", 6304, 768, 3072),
    Layer("vit-b down", 6304, 3072, 768),
    Layer("gpt2 up", 8192, 768, 3072),
)
PRECISIONS = ("tf32", "bf16")


def measured(layer: Layer, time: Time, copy_gbs: float, device: torch.device) -> Iterator[dict[str, Any]]:
    """A row of each rung."""
    torch.manual_seed(0)
    k, p, q = layer.block_size, layer.outputs // layer.block_size, layer.inputs // layer.block_size
    x, dy = (torch.randn(layer.rows, width, device=device).to(layer.dtype) for width in (layer.inputs, layer.outputs))
    weight = torch.randn(p, q, k, device=device) / layer.inputs**0.5
    _, spectra = ops.linear(x, weight, None, None, 0, False)

    def backward(bias: torch.dtype | None) -> Tensor:
        db: Tensor
        _, _, db = ops.linear_backward(dy, x, spectra, None, [p, q, k], weight.dtype, True, True, 0, bias)
        return db

    def after(sums: Callable[[], Tensor]) -> Tensor:
        found = sums()
        backward(None)
        return found

    calls: dict[str, Callable[[], Tensor]] = {
        "": lambda: backward(None),
        "[bias=sum]": lambda: after(lambda: dy.sum(0, dtype=torch.float32)),
        "[bias=channel_sums]": lambda: after(lambda: run_channel_sums(dy[..., None], torch.float32)),
        "[bias=kernels]": lambda: backward(torch.float32),
    }
    exact = dy.double().sum(0)
    moved = 2 * layer.dtype.itemsize * layer.rows * (layer.inputs + layer.outputs)
    for rung, call in calls.items():
        with torch.no_grad():
            yield {
                "workload": "bias gradient", "layer": layer.name, "phase": "backward_weight",
                "precision": layer.precision, "layout": "nchw", "impl": f"fused_rows{rung}", "block_size": k,
                "batch": layer.rows, "timing": "graph", "l2": "cold", "by": "lamina", **results.quartiles(time(call)),
                "rel_error": run.relative_error([call()], [exact]) if rung else None,
                "unchecked": None if rung else "it has no sums; tests compare its gradients with float64",
                "predicted_us": moved / copy_gbs / 1e3,
            }  # fmt: skip


def main() -> None:
    asked = results.arguments("ladder.bias_gradient")
    device = torch.device("cuda")
    rows: Rows = []
    with cold_graphs(device) as (time, copy_gbs):
        for precision in PRECISIONS:
            with precision_mode(precision):
                for layer in LAYERS:
                    found = measured(replace(layer, precision=precision), time, copy_gbs, device)
                    rows += shown(found, ("layer", "precision", "impl", "median_us"))
    summary = beside_predictions(rows, "layer", "precision")
    print(results.write("ladder_bias_gradient", "cuda", rows, summary, asked, "ladder.bias_gradient"))


if __name__ == "__main__":
    main()

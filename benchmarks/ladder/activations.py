"""Claim: the GELU in front of a circulant layer of many rows costs less in the layer's kernels than in its own.

Rungs: ``fused_rows``, the layer without GELU; ``[gelu=pytorch]``, with PyTorch's kernels of GELU and of its gradient;
``[gelu=kernels]``, as layers run it: as rows are read and as the input gradient is written. Layers of a vision
transformer and of GPT-2 with their own GELU, exact or by tanh, in TF32 and bf16, at block sizes of 32, 64 and 128, in
CUDA graphs, with operands that are not in L2. The prediction is the time to copy what a rung must read and write.
Results are compared with float64.

Run: python -m benchmarks.ladder.activations
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks import results
from benchmarks.gpus import Rows, shown
from benchmarks.ladder.rows import Layer
from benchmarks.ladder.rungs import Time, beside_predictions, cold_graphs
from lamina import run
from lamina.accelerate.methods.circulant import reference
from lamina.accelerate.methods.circulant.activations import InputActivation, activated, code, gradient_through
from lamina.accelerate.methods.circulant.fused_rows import ops
from lamina.run import precision_mode

LAYERS: tuple[tuple[Layer, InputActivation], ...] = (
    (Layer("vit-b down", 6304, 3072, 768), "gelu"),
    (Layer("vit-b down", 6304, 3072, 768, 32), "gelu"),
    (Layer("vit-b down", 6304, 3072, 768, 128), "gelu"),
    (Layer("vit-l down", 6304, 4096, 1024), "gelu"),
    (Layer("gpt2 down", 8192, 3072, 768), "gelu_tanh"),
)
PRECISIONS = ("tf32", "bf16")
PASSES = {"": (1, 2), "[gelu=pytorch]": (3, 5), "[gelu=kernels]": (1, 3)}
"""How often a rung reads or writes something of the size of its inputs: forward, and backward for both gradients."""


def measured(
    layer: Layer, activation: InputActivation, time: Time, copy_gbs: float, device: torch.device
) -> Iterator[dict[str, Any]]:
    """A row of each rung, forward and backward."""
    torch.manual_seed(0)
    k, number = layer.block_size, code(activation)
    p, q = layer.outputs // k, layer.inputs // k
    h, dy = (torch.randn(layer.rows, width, device=device).to(layer.dtype) for width in (layer.inputs, layer.outputs))
    weight = torch.randn(p, q, k, device=device) / layer.inputs**0.5
    _, spectra = ops.linear(h, weight, None, None, 0, False)
    x = activated(h, activation)

    def forward(x: Tensor, inside: int) -> Sequence[Tensor]:
        return [ops.linear(x, weight, None, None, inside, False)[0]]

    def backward(x: Tensor, inside: int) -> list[Tensor]:
        dx, dw, _ = ops.linear_backward(dy, x, spectra, None, [p, q, k], weight.dtype, True, True, inside, None)
        return [dx, dw]

    def apart() -> Sequence[Tensor]:
        dx, dw = backward(x, 0)
        return [gradient_through(dx, h, activation), dw]

    calls: dict[str, tuple[Callable[[], Sequence[Tensor]], Callable[[], Sequence[Tensor]]]] = {
        "": (lambda: forward(h, 0), lambda: backward(h, 0)),
        "[gelu=pytorch]": (lambda: forward(activated(h, activation), 0), apart),
        "[gelu=kernels]": (lambda: forward(h, number), lambda: backward(h, number)),
    }
    leaves = h.double().requires_grad_(), weight.double().requires_grad_()
    for rung, pair in calls.items():
        y = reference.linear(activated(leaves[0], activation if rung else None), leaves[1], None, layer.outputs)
        exact = [y.detach()], torch.autograd.grad(y, leaves, dy.double())
        for phase, call, right, passes in zip(("forward", "backward_data"), pair, exact, PASSES[rung], strict=True):
            width = passes * layer.inputs + (1 if phase == "forward" else 2) * layer.outputs
            moved = layer.dtype.itemsize * layer.rows * width
            with torch.no_grad():
                yield {
                    "workload": "activations", "layer": f"{layer.name} k={k}", "phase": phase,
                    "precision": layer.precision, "layout": "nchw", "impl": f"fused_rows{rung}", "block_size": k,
                    "batch": layer.rows, "timing": "graph", "l2": "cold", "by": "lamina",
                    **results.quartiles(time(call)),
                    "rel_error": max(run.relative_error([a], [b]) for a, b in zip(call(), right, strict=True)),
                    "predicted_us": moved / copy_gbs / 1e3,
                }  # fmt: skip


def main() -> None:
    asked = results.arguments("ladder.activations")
    device = torch.device("cuda")
    rows: Rows = []
    with cold_graphs(device) as (time, copy_gbs):
        for precision in PRECISIONS:
            with precision_mode(precision):
                for layer, activation in LAYERS:
                    found = measured(replace(layer, precision=precision), activation, time, copy_gbs, device)
                    rows += shown(found, ("layer", "phase", "precision", "impl", "median_us", "rel_error"))
    summary = beside_predictions(rows, "layer", "phase", "precision")
    print(results.write("ladder_activations", "cuda", rows, summary, asked, "ladder.activations"))


if __name__ == "__main__":
    main()

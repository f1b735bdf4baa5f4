"""Claim: what keeping spectra on the chip is worth in block-circulant linear layers of many rows, in bf16.

Rungs: ``kernel``, three launches with spectra in memory; ``fused_rows``, one launch for each phase. Beside them the
dense product by the vendor's library. Layers of vision transformers and of an MLP, and a pointwise convolution as the
linear map that it is, at block sizes 32, 64 and 128; each phase and the whole step, in CUDA graphs, with operands that
are not in L2. The prediction is the time to copy the rows, outputs and gradients that a phase must read and write.
Results are compared with the definition in float64. Layers are distributed over the available GPUs, one at a time on
each.

Run: python -m benchmarks.ladder.rows
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks import results
from benchmarks.gpus import Rows, on_every_gpu, shown
from benchmarks.ladder.rungs import Time, beside_predictions, cold_graphs
from lamina import run
from lamina.accelerate.methods.circulant import functional, reference
from lamina.accelerate.methods.circulant.config import Impl

RUNGS: tuple[Impl, ...] = ("kernel", "fused_rows")
PHASES = ("forward", "backward_data", "backward_weight", "step")
Calls = dict[str, Callable[[], Sequence[Tensor]]]


@dataclass(frozen=True)
class Layer:
    """A linear layer of the claim."""

    name: str
    rows: int
    inputs: int
    outputs: int
    block_size: int = 64
    precision: str = "bf16"

    @property
    def dtype(self) -> torch.dtype:
        """Of rows and weights."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    @property
    def moved(self) -> dict[str, int]:
        """Bytes that each phase reads and writes at least: inputs and outputs, or their gradients."""
        phase = self.dtype.itemsize * self.rows * (self.inputs + self.outputs)
        return dict.fromkeys(PHASES[:3], phase) | {"step": 3 * phase}


LAYERS = (
    Layer("vit-b up", 4096, 768, 3072),
    Layer("vit-b up", 4096, 768, 3072, 32),
    Layer("vit-b up", 4096, 768, 3072, 128),
    Layer("vit-b down", 4096, 3072, 768),
    Layer("vit-l up", 6304, 1024, 4096),
    Layer("vit-l down", 6304, 4096, 1024),
    Layer("mlp", 2048, 1024, 4096),
    Layer("conv 1x1", 12544, 256, 512),
)


def dense(x: Tensor, weight: Tensor, dy: Tensor) -> Calls:
    """The phases by the vendor's library, with the matrix made beforehand."""
    matrix = reference.dense_matrix(weight, dy.shape[1], x.shape[1])
    return {
        "forward": lambda: [x @ matrix.T],
        "backward_data": lambda: [dy @ matrix],
        "backward_weight": lambda: [dy.T @ x],
        "step": lambda: [x @ matrix.T, dy @ matrix, dy.T @ x],
    }


def circulant(impl: Impl, x: Tensor, weight: Tensor, dy: Tensor) -> Calls:
    """The phases by a rung, weight transforms included; a gradient alone starts from what the forward pass kept."""
    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    forward = partial(functional.linear, out_features=dy.shape[1], impl=impl)
    kept = forward(*leaves)

    def step() -> Sequence[Tensor]:
        y = forward(*leaves)
        return [y.detach(), *torch.autograd.grad(y, leaves, dy)]

    return {
        "forward": lambda: [forward(x, weight)],
        "backward_data": lambda: torch.autograd.grad(kept, leaves[:1], dy, retain_graph=True),
        "backward_weight": lambda: torch.autograd.grad(kept, leaves[1:], dy, retain_graph=True),
        "step": step,
    }


def definition(x: Tensor, weight: Tensor, dy: Tensor) -> dict[str, list[Tensor]]:
    """The exact results of each phase, in float64."""
    leaves = x.double().requires_grad_(), weight.double().requires_grad_()
    y = reference.linear(*leaves, None, dy.shape[1])
    dx, dw = torch.autograd.grad(y, leaves, dy.double())
    return dict(zip(PHASES, ([y.detach()], [dx], [dw], [y.detach(), dx, dw]), strict=True))


def measured(
    layer: Layer, time: Time, copy_gbs: float, device: torch.device
) -> Iterator[dict[str, Any]]:
    """A row for dense and each rung, in each phase."""
    torch.manual_seed(0)
    k, p, q = layer.block_size, layer.outputs // layer.block_size, layer.inputs // layer.block_size
    x, dy = (torch.randn(layer.rows, width, device=device).to(layer.dtype) for width in (layer.inputs, layer.outputs))
    weight = (torch.randn(p, q, k, device=device) / layer.inputs**0.5).to(layer.dtype)
    exact = definition(x, weight, dy)
    library = {phase: list(tensors) for phase, tensors in exact.items()}
    library["backward_weight"] = [dy.double().T @ x.double()]
    library["step"] = [*exact["step"][:2], *library["backward_weight"]]
    contenders: dict[str, tuple[Calls, dict[str, list[Tensor]]]] = {"dense": (dense(x, weight, dy), library)}
    for rung in RUNGS:
        contenders[f"circulant[block_size={k},impl={rung}]"] = circulant(rung, x, weight, dy), exact
    for impl, (calls, right) in contenders.items():
        for phase, call in calls.items():
            error = max(run.relative_error([a], [b]) for a, b in zip(call(), right[phase], strict=True))
            yield {
                "workload": "rows", "layer": f"{layer.name} k={k}", "phase": phase, "precision": layer.precision,
                "layout": "nchw", "impl": impl, "block_size": k, "batch": layer.rows, "timing": "graph", "l2": "cold",
                "by": "lamina", **results.quartiles(time(call)),
                "rel_error": error, "predicted_us": layer.moved[phase] / copy_gbs / 1e3,
            }  # fmt: skip


def shown_while_measured(layer: Layer) -> Rows:
    """The rows of a layer, printed as they are measured."""
    device = torch.device("cuda")
    with cold_graphs(device) as (time, copy_gbs):
        rows = measured(layer, time, copy_gbs, device)
        return shown(rows, ("layer", "phase", "impl", "median_us", "rel_error"))


def main() -> None:
    asked = results.arguments("ladder.rows")
    for rows in on_every_gpu(shown_while_measured, LAYERS):
        summary = beside_predictions(rows, "layer", "phase")
        path = results.write("ladder_rows", "cuda", rows, summary, asked, "ladder.rows")
    print(path)


if __name__ == "__main__":
    main()
